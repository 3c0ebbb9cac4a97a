// AVX512 intrinsics in portable code: SIMDe (Debian: libsimde-dev) under the native names, and the few it lacks written out
// here.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-function"
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#pragma GCC diagnostic pop

#include <cstdint>
#include <cstring>

#ifndef __AVX512F__
using __mmask16 = simde__mmask16;
#endif

namespace hasten {
namespace {

inline __m512 emulated_maskz_loadu_ps(__mmask16 mask, const float* p) {
  float lanes[16] = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) lanes[i] = p[i];
  }
  return _mm512_loadu_ps(lanes);
}

inline void emulated_mask_storeu_ps(float* p, __mmask16 mask, __m512 a) {
  float lanes[16];
  _mm512_storeu_ps(lanes, a);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) p[i] = lanes[i];
  }
}

// SIMDe multiplies and adds apart where there is no fma instruction.
inline __m512 emulated_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  float x[16], y[16], z[16];
  _mm512_storeu_ps(x, a);
  _mm512_storeu_ps(y, b);
  _mm512_storeu_ps(z, c);
  for (int i = 0; i < 16; ++i) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
  return _mm512_loadu_ps(z);
}

struct IntLanes {
  int32_t v[16];
  explicit IntLanes(__m512i a) { std::memcpy(v, &a, sizeof(v)); }
  __m512i vector() const { return _mm512_loadu_si512(v); }
};

inline int32_t emulated_reduce_add_epi32(__m512i a) {
  const IntLanes lanes(a);
  int32_t sum = 0;
  for (const int32_t lane : lanes.v) sum += lane;
  return sum;
}

inline int32_t emulated_reduce_max_epi32(__m512i a) {
  const IntLanes lanes(a);
  int32_t best = lanes.v[0];
  for (const int32_t lane : lanes.v) best = lane > best ? lane : best;
  return best;
}

inline __m512i emulated_srai_epi32(__m512i a, int bits) {
  IntLanes lanes(a);
  for (int32_t& lane : lanes.v) lane >>= bits;
  return lanes.vector();
}

inline __m512 emulated_cvtepi32_ps(__m512i a) {
  const IntLanes lanes(a);
  float out[16];
  for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(lanes.v[i]);
  return _mm512_loadu_ps(out);
}

inline __m512i emulated_cvtepu16_epi32(__m256i a) {
  uint16_t in[16];
  std::memcpy(in, &a, sizeof(in));
  int32_t out[16];
  for (int i = 0; i < 16; ++i) out[i] = in[i];
  return _mm512_loadu_si512(out);
}

inline __m128i emulated_cvtepi32_epi8(__m512i a) {
  const IntLanes lanes(a);
  int8_t out[16];
  for (int i = 0; i < 16; ++i) out[i] = static_cast<int8_t>(lanes.v[i]);
  __m128i result;
  std::memcpy(&result, out, sizeof(result));
  return result;
}

inline __m512 emulated_cvtph_ps(__m256i a) {
  uint16_t in[16];
  std::memcpy(in, &a, sizeof(in));
  float out[16];
  for (int i = 0; i < 16; ++i) {
    const uint32_t exponent = in[i] >> 10 & 31u, fraction = in[i] & 1023u;
    float magnitude = __builtin_ldexpf(static_cast<float>(exponent == 0 ? fraction : fraction + 1024u),
                                       exponent == 0 ? -24 : static_cast<int>(exponent) - 25);
    if (exponent == 31) magnitude = fraction == 0 ? __builtin_inff() : __builtin_nanf("");
    out[i] = in[i] & 0x8000u ? -magnitude : magnitude;
  }
  return _mm512_loadu_ps(out);
}

// Unsigned bytes of a times signed bytes of b, four products added to each 32-bit lane.
inline __m512i emulated_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  uint8_t codes[64];
  int8_t values[64];
  std::memcpy(codes, &a, sizeof(codes));
  std::memcpy(values, &b, sizeof(values));
  IntLanes lanes(sum);
  for (int i = 0; i < 64; ++i) lanes.v[i / 4] += codes[i] * values[i];
  return lanes.vector();
}

}  // namespace
}  // namespace hasten

#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps emulated_fmadd_ps
#define _mm512_maskz_loadu_ps emulated_maskz_loadu_ps
#define _mm512_mask_storeu_ps emulated_mask_storeu_ps
#define _mm512_reduce_add_epi32 emulated_reduce_add_epi32
#define _mm512_reduce_max_epi32 emulated_reduce_max_epi32
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 emulated_srai_epi32
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
#define _mm512_cvtph_ps emulated_cvtph_ps
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 emulated_dpbusd_epi32
