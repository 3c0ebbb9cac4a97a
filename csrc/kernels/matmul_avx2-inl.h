// Integer dot products by vpmaddwd (16-bit pairs; vpmaddubsw would saturate). Operand of a row: k int16, each four stored as
// (0, 2, 1, 3): masking or shifting a 32-bit word of four codes leaves codes 0 and 2, or 1 and 3, in its 16-bit halves, so a
// broadcast pair of activations meets its weights without a shuffle.
#pragma once

#include "kernels/matmul_tile-inl.h"

namespace hasten {
namespace {

inline void store_sixteen(uint8_t* operand, IVec wide) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(wide.lo, wide.hi), 0xd8);
  const __m256i swizzled = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(packed, 0xd8), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(operand), swizzled);
}
inline void store_group(uint8_t* operand, IVec first, IVec second) {
  store_sixteen(operand, first);
  store_sixteen(operand + 2 * kLanes, second);
}

inline __m256i broadcast_pair(const uint8_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return _mm256_set1_epi32(pair);
}

template <WeightFormat kFormat, int kRows>
struct Avx2Dot {
  using Format = Codes<kFormat>;

  // 16 weights pairs (two codes of 8 outputs each in lo and hi) against one activation pair of every row.
  static void add_pair(__m256i lo, __m256i hi, const uint8_t* pair, int64_t row_bytes, IVec* dots) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256i x = broadcast_pair(pair + r * row_bytes);
      dots[r].lo = _mm256_add_epi32(dots[r].lo, _mm256_madd_epi16(lo, x));
      dots[r].hi = _mm256_add_epi32(dots[r].hi, _mm256_madd_epi16(hi, x));
    }
  }

  static void group(const uint8_t* codes, const uint8_t* operand, int64_t row_bytes, const int32_t* group_sums, int64_t groups,
                    IVec* dots) {
    IVec sums[kRows];
    for (int r = 0; r < kRows; ++r) sums[r] = iset1(-Format::kBias * group_sums[r * groups]);
    const __m256i mask = _mm256_set1_epi16(Format::kIs4Bit ? 0x000f : 0x00ff);
    constexpr int kSteps = Format::kGroupBytes / 64;
#pragma GCC unroll 1
    for (int s = 0; s < kSteps; ++s) {
      const IVec v = iload(codes + s * 64);
      prefetch(codes + s * 64 + kPrefetchBytes);
      if constexpr (Format::kIs4Bit) {
        const uint8_t* x = operand + s * 16;
        add_pair(_mm256_and_si256(v.lo, mask), _mm256_and_si256(v.hi, mask), x, row_bytes, sums);
        add_pair(_mm256_and_si256(_mm256_srli_epi16(v.lo, 8), mask), _mm256_and_si256(_mm256_srli_epi16(v.hi, 8), mask), x + 4,
                 row_bytes, sums);
        add_pair(_mm256_and_si256(_mm256_srli_epi16(v.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(v.hi, 4), mask), x + 8,
                 row_bytes, sums);
        add_pair(_mm256_srli_epi16(v.lo, 12), _mm256_srli_epi16(v.hi, 12), x + 12, row_bytes, sums);
      } else {
        const uint8_t* x = operand + s * 8;
        add_pair(_mm256_and_si256(v.lo, mask), _mm256_and_si256(v.hi, mask), x, row_bytes, sums);
        add_pair(_mm256_srli_epi16(v.lo, 8), _mm256_srli_epi16(v.hi, 8), x + 4, row_bytes, sums);
      }
    }
    for (int r = 0; r < kRows; ++r) dots[r] = sums[r];
  }

 private:
  static constexpr int kPrefetchBytes = 1024;  // two to four groups: past the reach of one missed page walk
};

void matmul_quantized(const PackedMatrix& w, int panel_begin, int panel_end, const QuantizedRows& x, int row_begin, int row_end,
                      float* out, int64_t out_stride) {
  // Four rows: 8 sums, 2 loaded, 2 unpacked, 1 broadcast and 1 mask of 16 registers.
  quantized_panels<Avx2Dot, 4>(w, panel_begin, panel_end, x, row_begin, row_end, out, out_stride);
}

}  // namespace
}  // namespace hasten
