// Sixteen float lanes as one AVX512 register; same functions and bits as vec_scalar.h.
#pragma once

#ifdef HASTEN_EMULATE_AVX512
#include "support/avx512_emulation.h"  // tests only: the same intrinsics in portable code, for machines without AVX512
#else
// GCC 12's own header passes deliberately undefined registers to its builtins and then warns of them.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include <cstdint>

namespace hasten {
namespace {

constexpr int kLanes = 16;

struct Vec {
  __m512 v;
};
struct IVec {
  __m512i v;
};

inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }  // 0 <= n <= 16

inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void store_partial(float* p, int n, Vec a) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
inline Vec select_first(int n, Vec a, Vec b) { return {_mm512_mask_blend_ps(first_lanes(n), b.v, a.v)}; }
inline uint32_t equal_mask(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }

inline __m256 upper_half(__m512 a) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)); }
inline float sum_tree(Vec a) {
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_shuffle_ps(by2, by2, 1)));
}
inline float max_tree(Vec a) {
  const __m256 by8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_shuffle_ps(by2, by2, 1)));
}

inline IVec iset1(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline IVec iload(const void* p) { return {_mm512_loadu_si512(p)}; }
inline IVec iadd(IVec a, IVec b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline IVec isub(IVec a, IVec b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline IVec iand(IVec a, IVec b) { return {_mm512_and_si512(a.v, b.v)}; }
inline IVec imax(IVec a, IVec b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int kBits>
inline IVec shift_left(IVec a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
inline IVec shift_right(IVec a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
inline IVec bits_of(Vec a) { return {_mm512_castps_si512(a.v)}; }
inline Vec from_bits(IVec a) { return {_mm512_castsi512_ps(a.v)}; }
inline Vec to_float(IVec a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline int32_t isum(IVec a) { return _mm512_reduce_add_epi32(a.v); }
inline int32_t imax_lane(IVec a) { return _mm512_reduce_max_epi32(a.v); }

inline Vec load_f16(const void* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
inline Vec load_bf16(const void* p) {
  return from_bits({_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16)});
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace hasten
