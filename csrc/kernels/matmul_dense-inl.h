// Float weights: one fma per weight, inputs left to right, a fresh sum every 64 inputs.
#pragma once

#include "kernels/kernel_table.h"

namespace hasten {
namespace {

constexpr int kDenseRun = 64;
constexpr int kDenseRows = 4;  // 16 registers of 8 floats: 8 sums, 2 weights, 1 broadcast

template <WeightFormat kFormat>
inline Vec load_weights(const uint8_t* codes) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return load(reinterpret_cast<const float*>(codes));
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return load_f16(codes);
  } else {
    return load_bf16(codes);
  }
}

template <WeightFormat kFormat, int kRows>
void dense_tile(const uint8_t* codes, int k, const float* x, int64_t x_stride, int lanes, float* out, int64_t out_stride) {
  constexpr int kRowBytes = kPanel * (kFormat == WeightFormat::kF32 ? 4 : 2);
  Vec totals[kRows];
  for (int r = 0; r < kRows; ++r) totals[r] = set1(0.0f);
  for (int run = 0; run < k; run += kDenseRun) {
    const int end = k - run < kDenseRun ? k : run + kDenseRun;
    Vec sums[kRows];
    for (int r = 0; r < kRows; ++r) sums[r] = set1(0.0f);
    for (int i = run; i < end; ++i, codes += kRowBytes) {
      const Vec weights = load_weights<kFormat>(codes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums[r] = fma(weights, set1(x[r * x_stride + i]), sums[r]);
    }
    for (int r = 0; r < kRows; ++r) totals[r] = add(totals[r], sums[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    lanes == kPanel ? store(out + r * out_stride, totals[r]) : store_partial(out + r * out_stride, lanes, totals[r]);
  }
}

template <WeightFormat kFormat>
void dense_panels(const PackedMatrix& w, int panel_begin, int panel_end, const float* x, int64_t x_stride, int row_begin,
                  int row_end, float* out, int64_t out_stride) {
  const int64_t panel_bytes = static_cast<int64_t>(w.k) * kPanel * (kFormat == WeightFormat::kF32 ? 4 : 2);
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const uint8_t* codes = static_cast<const uint8_t*>(w.codes) + p * panel_bytes;
    const int left = w.n - static_cast<int>(p) * kPanel;
    const int lanes = left < kPanel ? left : kPanel;
    int64_t row = row_begin;
    for (; row + kDenseRows <= row_end; row += kDenseRows) {
      dense_tile<kFormat, kDenseRows>(codes, w.k, x + row * x_stride, x_stride, lanes, out + row * out_stride + p * kPanel,
                                      out_stride);
    }
    for (; row < row_end; ++row) {
      dense_tile<kFormat, 1>(codes, w.k, x + row * x_stride, x_stride, lanes, out + row * out_stride + p * kPanel, out_stride);
    }
  }
}

void matmul_dense(const PackedMatrix& w, int panel_begin, int panel_end, const float* x, int64_t x_stride, int row_begin,
                  int row_end, float* out, int64_t out_stride) {
  switch (w.format) {
    case WeightFormat::kF32:
      return dense_panels<WeightFormat::kF32>(w, panel_begin, panel_end, x, x_stride, row_begin, row_end, out, out_stride);
    case WeightFormat::kF16:
      return dense_panels<WeightFormat::kF16>(w, panel_begin, panel_end, x, x_stride, row_begin, row_end, out, out_stride);
    case WeightFormat::kBF16:
      return dense_panels<WeightFormat::kBF16>(w, panel_begin, panel_end, x, x_stride, row_begin, row_end, out, out_stride);
    default:
      return;  // integer codes go to matmul_quantized
  }
}

}  // namespace
}  // namespace hasten
