// The walk of matmul_quantized over panels, row tiles and K-blocks; a matmul_*-inl.h gives the integer dot products of a group.
//
// No int32 sum overflows, whatever the codes and whatever the order of addition:
//   |Σ wide · c|     <= 32 · 32,258 · 255 = 263,225,280
//   |bias · Σ wide|  <= 128 · 32 · 32,258 = 132,128,768, together 395 million of 2,147 million;
//   in planes        256 · |Σ value · c| <= 256 · 32 · 126 · 255 = 263,208,960, and
//                    |Σ residual · c| <= 32 · 128 · 255 = 1,044,480.
#pragma once

#include "kernels/kernel_table.h"

namespace hasten {
namespace {

template <WeightFormat kFormat>
struct Codes {
  static constexpr bool kIs4Bit = kFormat != WeightFormat::kQ8_0;
  static constexpr bool kHasMins = kFormat == WeightFormat::kQ4_1;
  static constexpr int kBias = kFormat == WeightFormat::kQ8_0 ? 128 : kFormat == WeightFormat::kQ4_0 ? 8 : 0;
  static constexpr int kGroupBytes = kGroup * kPanel * (kIs4Bit ? 4 : 8) / 8;  // one group of a panel
};

struct PanelStreams {
  const uint8_t* codes;
  const uint16_t* scales;
  const uint16_t* mins;
};

// kRows rows of one panel; Dot<kFormat, kRows>::group(codes, operands, biased sums to start from, dots) does the integers.
template <template <WeightFormat, int> class Dot, WeightFormat kFormat, int kRows>
void panel_tile(const PanelStreams& panel, const QuantizedRows& x, int row, int lanes, float* out, int64_t out_stride) {
  using Format = Codes<kFormat>;
  const int64_t k = x.k, blocks = x.k / x.k_block, groups = x.k / kGroup;
  const int groups_per_block = x.k_block / kGroup;
  Vec sums[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = set1(0.0f);
  const uint8_t* codes = panel.codes;
  const uint8_t* operand = x.operand + row * 2 * k;
  const int32_t* group_sums = x.group_sums + row * groups;
  const uint16_t* scales = panel.scales;
  const uint16_t* mins = panel.mins;
  for (int64_t b = 0; b < blocks; ++b) {
    Vec partial[kRows];
    for (int r = 0; r < kRows; ++r) partial[r] = set1(0.0f);
    for (int g = 0; g < groups_per_block; ++g) {
      IVec dots[kRows];
      Dot<kFormat, kRows>::group(codes, operand, 2 * k, group_sums, groups, dots);
      const Vec scale = load_f16(scales);
      for (int r = 0; r < kRows; ++r) partial[r] = fma(scale, to_float(dots[r]), partial[r]);
      if constexpr (Format::kHasMins) {
        const Vec min = load_f16(mins);
        for (int r = 0; r < kRows; ++r) {
          partial[r] = fma(min, set1(static_cast<float>(group_sums[r * groups])), partial[r]);
        }
        mins += kPanel;
      }
      codes += Format::kGroupBytes;
      scales += kPanel;
      operand += 2 * kGroup;
      ++group_sums;
    }
    for (int r = 0; r < kRows; ++r) sums[r] = fma(set1(x.scales[(row + r) * blocks + b]), partial[r], sums[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    float* to = out + (row + r) * out_stride;
    lanes == kPanel ? store(to, sums[r]) : store_partial(to, lanes, sums[r]);
  }
}

// kRows rows at a time; what is left goes through a smaller tile with the same numbers.
template <template <WeightFormat, int> class Dot, WeightFormat kFormat, int kRows>
void panel_rows(const PanelStreams& panel, const QuantizedRows& x, int row, int row_end, int lanes, float* out,
                int64_t out_stride) {
  for (; row + kRows <= row_end; row += kRows) panel_tile<Dot, kFormat, kRows>(panel, x, row, lanes, out, out_stride);
  if constexpr (kRows > 1) {
    if (row < row_end) panel_rows<Dot, kFormat, kRows - 1>(panel, x, row, row_end, lanes, out, out_stride);
  }
}

template <template <WeightFormat, int> class Dot, WeightFormat kFormat, int kMaxRows>
void format_panels(const PackedMatrix& w, int panel_begin, int panel_end, const QuantizedRows& x, int row_begin, int row_end,
                   float* out, int64_t out_stride) {
  const int64_t groups = w.k / kGroup;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const PanelStreams panel{static_cast<const uint8_t*>(w.codes) + p * groups * Codes<kFormat>::kGroupBytes,
                             w.scales + p * groups * kPanel, Codes<kFormat>::kHasMins ? w.mins + p * groups * kPanel : nullptr};
    const int left = w.n - static_cast<int>(p) * kPanel;
    panel_rows<Dot, kFormat, kMaxRows>(panel, x, row_begin, row_end, left < kPanel ? left : kPanel, out + p * kPanel,
                                       out_stride);
  }
}

template <template <WeightFormat, int> class Dot, int kMaxRows>
void quantized_panels(const PackedMatrix& w, int panel_begin, int panel_end, const QuantizedRows& x, int row_begin, int row_end,
                      float* out, int64_t out_stride) {
  switch (w.format) {
    case WeightFormat::kQ8_0:
      return format_panels<Dot, WeightFormat::kQ8_0, kMaxRows>(w, panel_begin, panel_end, x, row_begin, row_end, out,
                                                               out_stride);
    case WeightFormat::kQ4_0:
      return format_panels<Dot, WeightFormat::kQ4_0, kMaxRows>(w, panel_begin, panel_end, x, row_begin, row_end, out,
                                                               out_stride);
    case WeightFormat::kQ4_1:
      return format_panels<Dot, WeightFormat::kQ4_1, kMaxRows>(w, panel_begin, panel_end, x, row_begin, row_end, out,
                                                               out_stride);
    default:
      return;  // float weights go to matmul_dense
  }
}

}  // namespace
}  // namespace hasten
