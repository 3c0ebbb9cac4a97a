// Integer dot products in plain C++. Operand of a row: k int16 in order.
#pragma once

#include <cstring>

#include "kernels/matmul_tile-inl.h"

namespace hasten {
namespace {

inline void store_group(uint8_t* operand, IVec first, IVec second) {
  int16_t wide[kGroup];
  for (int i = 0; i < kLanes; ++i) wide[i] = static_cast<int16_t>(first.v[i]);
  for (int i = 0; i < kLanes; ++i) wide[kLanes + i] = static_cast<int16_t>(second.v[i]);
  std::memcpy(operand, wide, sizeof(wide));
}

template <WeightFormat kFormat, int kRows>
struct ScalarDot {
  static_assert(kRows == 1);
  static void group(const uint8_t* codes, const uint8_t* operand, int64_t, const int32_t* group_sums, int64_t, IVec* dots) {
    using Format = Codes<kFormat>;
    int16_t wide[kGroup];
    std::memcpy(wide, operand, sizeof(wide));
    int32_t sums[kPanel];
    for (int lane = 0; lane < kPanel; ++lane) sums[lane] = -Format::kBias * group_sums[0];
    for (int i = 0; i < kGroup; ++i) {
      for (int lane = 0; lane < kPanel; ++lane) {
        int code;
        if constexpr (Format::kIs4Bit) {
          const int byte = codes[(i / 8) * kPanel * 4 + lane * 4 + i % 4];
          code = i % 8 < 4 ? byte & 15 : byte >> 4;
        } else {
          code = codes[(i / 4) * kPanel * 4 + lane * 4 + i % 4];
        }
        sums[lane] += wide[i] * code;
      }
    }
    dots[0] = iload(sums);
  }
};

void matmul_quantized(const PackedMatrix& w, int panel_begin, int panel_end, const QuantizedRows& x, int row_begin, int row_end,
                      float* out, int64_t out_stride) {
  quantized_panels<ScalarDot, 1>(w, panel_begin, panel_end, x, row_begin, row_end, out, out_stride);
}

}  // namespace
}  // namespace hasten
