// Over one row of logits: largest, log of the sum, weights.
#pragma once

#include "kernels/exp-inl.h"
#include "kernels/kernel_table.h"

namespace hasten {
namespace {

// Largest value, NaN left out; -inf when there is none.
inline float row_max(const float* x, int n) {
  const Vec lowest = set1(-__builtin_inff());
  Vec best = lowest;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) best = max(load(x + i), best);
  if (i < n) best = max(select_first(n - i, load_partial(x + i, n - i), lowest), best);
  return max_tree(best);
}

int argmax(const float* x, int n) {
  const float best = row_max(x, n);
  if (best == -__builtin_inff()) return -1;
  const Vec wanted = set1(best);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const uint32_t mask = equal_mask(load(x + i), wanted);
    if (mask != 0) return i + __builtin_ctz(mask);
  }
  for (; i < n; ++i) {
    if (x[i] == best) return i;
  }
  return -1;
}

float log_sum_exp(const float* x, int n) {
  const float m = row_max(x, n);
  const Vec shift = set1(m);
  Vec sum = set1(0.0f);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = add(sum, exp(sub(load(x + i), shift)));
  if (i < n) {
    const Vec e = exp(sub(load_partial(x + i, n - i), shift));
    sum = add(sum, select_first(n - i, e, set1(0.0f)));
  }
  if (m == __builtin_inff() || m == -__builtin_inff()) return m;  // inf - inf has no exponential
  return m + static_cast<float>(own_log(static_cast<double>(sum_tree(sum))));
}

// The product is rounded before the shift is taken off, so that shift = max · scale gives exactly 1 at the maximum.
void exp_scaled(const float* x, float scale, float shift, float* out, int n) {
  const Vec a = set1(scale), b = set1(shift);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, exp(sub(mul(load(x + i), a), b)));
  if (i < n) store_partial(out + i, n - i, exp(sub(mul(load_partial(x + i, n - i), a), b)));
}

}  // namespace
}  // namespace hasten
