// Integer dot products by vpdpbusd: unsigned codes against two signed planes, wide = 256 · value + residual. Operand of a row:
// per group 32 int8 values, then 32 int8 residuals.
#pragma once

#include "kernels/exp-inl.h"
#include "kernels/matmul_tile-inl.h"

namespace hasten {
namespace {

// The residual is the low byte of wide as a signed number, and value what is left of it; |wide| <= 32258 keeps both in int8.
inline void store_sixteen(uint8_t* operand, IVec wide) {
  const IVec value = shift_right<8>(iadd(wide, iset1(128)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(operand), _mm512_cvtepi32_epi8(value.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(operand + kGroup), _mm512_cvtepi32_epi8(wide.v));
}
inline void store_group(uint8_t* operand, IVec first, IVec second) {
  store_sixteen(operand, first);
  store_sixteen(operand + kLanes, second);
}

inline __m512i broadcast_four(const uint8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm512_set1_epi32(four);
}

template <WeightFormat kFormat, int kRows>
struct Avx512Dot {
  using Format = Codes<kFormat>;

  // Four codes of 16 outputs against four activations of every row.
  static void add_four(__m512i codes, const uint8_t* four, int64_t row_bytes, __m512i* values, __m512i* residuals) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      values[r] = _mm512_dpbusd_epi32(values[r], codes, broadcast_four(four + r * row_bytes));
      residuals[r] = _mm512_dpbusd_epi32(residuals[r], codes, broadcast_four(four + r * row_bytes + kGroup));
    }
  }

  static void group(const uint8_t* codes, const uint8_t* operand, int64_t row_bytes, const int32_t* group_sums, int64_t groups,
                    IVec* dots) {
    __m512i values[kRows], residuals[kRows];
    for (int r = 0; r < kRows; ++r) {
      values[r] = _mm512_setzero_si512();
      residuals[r] = _mm512_set1_epi32(-Format::kBias * group_sums[r * groups]);
    }
    constexpr int kSteps = Format::kGroupBytes / 64;
#pragma GCC unroll 8
    for (int s = 0; s < kSteps; ++s) {
      const __m512i v = _mm512_loadu_si512(codes + s * 64);
      prefetch(codes + s * 64 + kPrefetchBytes);
      if constexpr (Format::kIs4Bit) {
        const __m512i mask = _mm512_set1_epi8(15);
        add_four(_mm512_and_si512(v, mask), operand + s * 8, row_bytes, values, residuals);
        add_four(_mm512_and_si512(_mm512_srli_epi16(v, 4), mask), operand + s * 8 + 4, row_bytes, values, residuals);
      } else {
        add_four(v, operand + s * 4, row_bytes, values, residuals);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      dots[r].v = _mm512_add_epi32(_mm512_slli_epi32(values[r], 8), residuals[r]);
    }
  }

 private:
  static constexpr int kPrefetchBytes = 2048;
};

void matmul_quantized(const PackedMatrix& w, int panel_begin, int panel_end, const QuantizedRows& x, int row_begin, int row_end,
                      float* out, int64_t out_stride) {
  // Eight rows: 16 sums, 8 partial results, 2 code registers, a mask and a broadcast of 32 registers.
  quantized_panels<Avx512Dot, 8>(w, panel_begin, panel_end, x, row_begin, row_end, out, out_stride);
}

}  // namespace
}  // namespace hasten
