// The largest magnitude of a run of numbers. Include after a vec_*.h.
#pragma once

namespace hasten {
namespace {

// max |x| of n values, n a multiple of 16. Compared as integers: NaN counts as larger than infinity, and the order does not
// matter.
inline float abs_max(const float* x, int n) {
  const IVec magnitude = iset1(0x7fffffff);
  IVec best = iset1(0);
  for (int i = 0; i < n; i += kLanes) best = imax(best, iand(bits_of(load(x + i)), magnitude));
  const int32_t bits = imax_lane(best);
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}

}  // namespace
}  // namespace hasten
