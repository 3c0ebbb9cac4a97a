// Activations to integers. Include after a vec_*.h and a matmul_*-inl.h, which defines store_group.
#pragma once

#include "kernels/abs_max-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/kernel_table.h"

namespace hasten {
namespace {

constexpr float kWideMax = 32258.0f;  // 254 · 127: two int8 planes hold it, and so do 16 bits

inline IVec to_wide(Vec x, Vec factor) { return round_to_int(max(set1(-kWideMax), min(set1(kWideMax), mul(x, factor)))); }

void quantize_block(const float* x, int n, uint8_t* operand, float* scale, int32_t* group_sums) {
  const float largest = abs_max(x, n);
  const bool finite = largest < __builtin_inff();
  *scale = largest < 1e-30f ? 0.0f : largest / kWideMax;
  const bool usable = finite && *scale > 0.0f;
  const Vec factor = set1(usable ? kWideMax / largest : 0.0f);
  for (int g = 0; g < n / kGroup; ++g) {
    const float* group = x + g * kGroup;
    IVec first = iset1(0), second = iset1(0);  // stay 0 under an infinite or NaN scale, which makes the whole output NaN
    if (usable) {
      first = to_wide(load(group), factor);
      second = to_wide(load(group + kLanes), factor);
    }
    group_sums[g] = isum(iadd(first, second));
    store_group(operand + g * kGroup * 2, first, second);
  }
}

void quantize_rows(const float* x, int64_t x_stride, int row_begin, int row_end, const QuantizedRows& out) {
  const int64_t blocks = out.k / out.k_block, groups = out.k / kGroup;
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t start = b * out.k_block;
      quantize_block(x + row * x_stride + start, out.k_block, out.operand + row * 2 * out.k + 2 * start,
                     out.scales + row * blocks + b, out.group_sums + row * groups + start / kGroup);
    }
  }
}

}  // namespace
}  // namespace hasten
