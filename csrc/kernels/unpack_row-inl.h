// One row of a packed matrix as float32 (embedding look-up).
#pragma once

#include <cstring>

#include "kernels/kernel_table.h"

namespace hasten {
namespace {

// Lane `lane` of the panel row of 16 elements at `codes`.
inline float float_weight(WeightFormat format, const uint8_t* codes, int lane) {
  float lanes[kLanes];
  if (format == WeightFormat::kF16) {
    store(lanes, load_f16(codes));
  } else if (format == WeightFormat::kBF16) {
    store(lanes, load_bf16(codes));
  } else {
    std::memcpy(lanes, codes, sizeof(lanes));
  }
  return lanes[lane];
}

void unpack_float_row(const PackedMatrix& w, const uint8_t* panel, int lane, float* out) {
  const int64_t row_bytes = kPanel * (w.format == WeightFormat::kF32 ? 4 : 2);
  for (int64_t i = 0; i < w.k; ++i) out[i] = float_weight(w.format, panel + i * row_bytes, lane);
}

inline int code_at(WeightFormat format, const uint8_t* panel, int64_t i, int lane) {
  if (format == WeightFormat::kQ8_0) return panel[(i / 4) * kPanel * 4 + lane * 4 + i % 4];
  const int byte = panel[(i / 8) * kPanel * 4 + lane * 4 + i % 4];
  return i % 8 < 4 ? byte & 15 : byte >> 4;
}

void unpack_row(const PackedMatrix& w, int row, float* out) {
  const int64_t panel = row / kPanel;
  const int lane = row % kPanel;
  const auto* codes = static_cast<const uint8_t*>(w.codes);
  if (w.scales == nullptr) {
    const int64_t panel_bytes = static_cast<int64_t>(w.k) * kPanel * (w.format == WeightFormat::kF32 ? 4 : 2);
    return unpack_float_row(w, codes + panel * panel_bytes, lane, out);
  }
  codes += panel * w.k * kPanel / (w.format == WeightFormat::kQ8_0 ? 1 : 2);
  const int bias = w.format == WeightFormat::kQ8_0 ? 128 : w.format == WeightFormat::kQ4_0 ? 8 : 0;
  for (int64_t g = 0; g < w.k / kGroup; ++g) {
    const int64_t at = (panel * (w.k / kGroup) + g) * kPanel;
    const float scale = float_weight(WeightFormat::kF16, reinterpret_cast<const uint8_t*>(w.scales + at), lane);
    const float min =
        w.mins == nullptr ? 0.0f : float_weight(WeightFormat::kF16, reinterpret_cast<const uint8_t*>(w.mins + at), lane);
    for (int64_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
      const auto code = static_cast<float>(code_at(w.format, codes, i, lane) - bias);
      out[i] = w.mins == nullptr ? scale * code : __builtin_fmaf(scale, code, min);
    }
  }
}

}  // namespace
}  // namespace hasten
