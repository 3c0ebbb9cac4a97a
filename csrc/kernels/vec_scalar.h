// Sixteen float lanes in plain C++. Every vec_*.h offers the same types and functions with the same bits, so that one loop in
// an -inl.h serves all tables. Everything is in an anonymous namespace: see isa_avx2.cc.
#pragma once

#include <cstdint>
#include <cstring>

namespace hasten {
namespace {

constexpr int kLanes = 16;

struct Vec {
  float v[kLanes];
};
struct IVec {
  int32_t v[kLanes];
};

#define HASTEN_EACH_LANE for (int i = 0; i < kLanes; ++i)

inline Vec set1(float x) {
  Vec r;
  HASTEN_EACH_LANE r.v[i] = x;
  return r;
}
inline Vec load(const float* p) {
  Vec r;
  HASTEN_EACH_LANE r.v[i] = p[i];
  return r;
}
// Lanes at and past n are +0 and not read.
inline Vec load_partial(const float* p, int n) {
  Vec r = set1(0.0f);
  for (int i = 0; i < n; ++i) r.v[i] = p[i];
  return r;
}
inline void store(float* p, Vec a) { HASTEN_EACH_LANE p[i] = a.v[i]; }
inline void store_partial(float* p, int n, Vec a) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
inline Vec add(Vec a, Vec b) {
  HASTEN_EACH_LANE a.v[i] += b.v[i];
  return a;
}
inline Vec sub(Vec a, Vec b) {
  HASTEN_EACH_LANE a.v[i] -= b.v[i];
  return a;
}
inline Vec mul(Vec a, Vec b) {
  HASTEN_EACH_LANE a.v[i] *= b.v[i];
  return a;
}
inline Vec div(Vec a, Vec b) {
  HASTEN_EACH_LANE a.v[i] /= b.v[i];
  return a;
}
inline Vec fma(Vec a, Vec b, Vec c) {
  HASTEN_EACH_LANE c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
// As SSE: b wherever the comparison does not hold, so a NaN in a never wins and a NaN in b does.
inline Vec min(Vec a, Vec b) {
  HASTEN_EACH_LANE b.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return b;
}
inline Vec max(Vec a, Vec b) {
  HASTEN_EACH_LANE b.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return b;
}
// a < b ? yes : no, lane by lane; false with a NaN.
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  HASTEN_EACH_LANE no.v[i] = a.v[i] < b.v[i] ? yes.v[i] : no.v[i];
  return no;
}
// The first n lanes of a, the others of b.
inline Vec select_first(int n, Vec a, Vec b) {
  for (int i = 0; i < n; ++i) b.v[i] = a.v[i];
  return b;
}
// Bit i is set when lane i is equal.
inline uint32_t equal_mask(Vec a, Vec b) {
  uint32_t mask = 0;
  HASTEN_EACH_LANE mask |= static_cast<uint32_t>(a.v[i] == b.v[i]) << i;
  return mask;
}
// lane[i] += lane[i + 8], then + 4, + 2, + 1.
inline float sum_tree(Vec a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  }
  return a.v[0];
}
inline float max_tree(Vec a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  }
  return a.v[0];
}

inline IVec iset1(int32_t x) {
  IVec r;
  HASTEN_EACH_LANE r.v[i] = x;
  return r;
}
inline IVec iload(const void* p) {
  IVec r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
inline IVec iadd(IVec a, IVec b) {
  HASTEN_EACH_LANE a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i]));
  return a;
}
inline IVec isub(IVec a, IVec b) {
  HASTEN_EACH_LANE a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i]));
  return a;
}
inline IVec iand(IVec a, IVec b) {
  HASTEN_EACH_LANE a.v[i] &= b.v[i];
  return a;
}
inline IVec imax(IVec a, IVec b) {
  HASTEN_EACH_LANE a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
template <int kBits>
inline IVec shift_left(IVec a) {
  HASTEN_EACH_LANE a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << kBits);
  return a;
}
template <int kBits>
inline IVec shift_right(IVec a) {  // arithmetic
  HASTEN_EACH_LANE a.v[i] >>= kBits;
  return a;
}
inline IVec bits_of(Vec a) {
  IVec r;
  std::memcpy(r.v, a.v, sizeof(r.v));
  return r;
}
inline Vec from_bits(IVec a) {
  Vec r;
  std::memcpy(r.v, a.v, sizeof(r.v));
  return r;
}
inline Vec to_float(IVec a) {
  Vec r;
  HASTEN_EACH_LANE r.v[i] = static_cast<float>(a.v[i]);
  return r;
}
inline int32_t isum(IVec a) {
  int32_t sum = 0;
  HASTEN_EACH_LANE sum += a.v[i];
  return sum;
}
inline int32_t imax_lane(IVec a) {
  int32_t best = a.v[0];
  HASTEN_EACH_LANE best = a.v[i] > best ? a.v[i] : best;
  return best;
}

// float16 to float32, exact; a signalling NaN comes out quiet, as from vcvtph2ps.
inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  uint32_t bits;
  if (magnitude >= 0x7c00u) {
    bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
    if (magnitude > 0x7c00u) bits |= 0x400000u;
  } else if (magnitude >= 0x400u) {
    bits = (magnitude << 13) + (112u << 23);
  } else {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;  // subnormal halves are multiples of 2^-24
    std::memcpy(&bits, &value, sizeof(bits));
  }
  bits |= sign;
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}
inline Vec load_f16(const void* p) {
  uint16_t h[kLanes];
  std::memcpy(h, p, sizeof(h));
  Vec r;
  HASTEN_EACH_LANE r.v[i] = half_to_float(h[i]);
  return r;
}
inline Vec load_bf16(const void* p) {
  uint16_t h[kLanes];
  std::memcpy(h, p, sizeof(h));
  IVec r;
  HASTEN_EACH_LANE r.v[i] = static_cast<int32_t>(static_cast<uint32_t>(h[i]) << 16);
  return from_bits(r);
}
inline void prefetch(const void*) {}

#undef HASTEN_EACH_LANE

}  // namespace
}  // namespace hasten
