// Norm, residual, activation, rotation: the loops over one row.
#pragma once

#include "kernels/exp-inl.h"
#include "kernels/kernel_table.h"

namespace hasten {
namespace {

void rms_norm(const float* x, const float* weight, float* out, int n, float eps) {
  Vec squares = set1(0.0f);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < n) {
    const Vec v = load_partial(x + i, n - i);
    squares = fma(v, v, squares);
  }
  const float mean = sum_tree(squares) / static_cast<float>(n);
  const Vec r = set1(1.0f / __builtin_sqrtf(mean + eps));
  for (i = 0; i + kLanes <= n; i += kLanes) store(out + i, mul(mul(load(x + i), r), load(weight + i)));
  if (i < n) store_partial(out + i, n - i, mul(mul(load_partial(x + i, n - i), r), load_partial(weight + i, n - i)));
}

void add(float* x, const float* y, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, add(load(x + i), load(y + i)));
  for (; i < n; ++i) x[i] += y[i];
}

inline Vec silu_times(Vec gate, Vec up) {
  const Vec below = add(set1(1.0f), exp(sub(set1(0.0f), gate)));
  return mul(div(gate, below), up);
}

void silu_mul(const float* gate, const float* up, float* out, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, silu_times(load(gate + i), load(up + i)));
  if (i < n) store_partial(out + i, n - i, silu_times(load_partial(gate + i, n - i), load_partial(up + i, n - i)));
}

void rope(float* head, const float* cos, const float* sin, int dim, bool interleaved) {
  const int half = dim / 2;
  const int step = interleaved ? 2 : 1;
  const int partner = interleaved ? 1 : half;
  for (int i = 0; i < half; ++i) {
    float* const a = head + i * step;
    float* const b = a + partner;
    const float turned_a = __builtin_fmaf(*a, cos[i], -(*b * sin[i]));
    *b = __builtin_fmaf(*a, sin[i], *b * cos[i]);
    *a = turned_a;
  }
}

// One block of `size` values, a power of two; every order of these additions gives the same bits.
void hadamard_block(float* x, int size) {
  for (int stride = 1; stride < size; stride *= 2) {
    for (int base = 0; base < size; base += 2 * stride) {
      for (int i = base; i < base + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
  const float factor = 1.0f / __builtin_sqrtf(static_cast<float>(size));
  for (int i = 0; i < size; ++i) x[i] *= factor;
}

void hadamard(float* x, int n) {
  const int size = n & -n;
  if (size < 2) return;
  for (int base = 0; base < n; base += size) hadamard_block(x + base, size);
}

}  // namespace
}  // namespace hasten
