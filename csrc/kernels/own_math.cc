// exp, log, sin and cos in double: plain additions, multiplications and divisions in a fixed order, so the same bits on every
// machine (libm chooses code by CPU). No fma: without one in hardware it would be a slow call.
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "kernels/kernel_table.h"

namespace hasten {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ln 2 = high + low; high has 32 significant bits, so that n · high is exact for every exponent n.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// π/2 in parts of 23 significant bits: n · part is exact for n < 2^30. The last part carries 53 bits.
constexpr double kHalfPi[] = {0x1.921fb4p+0, 0x1.4442dp-24, 0x1.846988p-48, 0x1.8cc514p-72, 0x1.80dc1cd129024p-95};

double from_bits(uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

uint64_t to_bits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

double power_of_two(int n) { return from_bits(static_cast<uint64_t>(n + 1023) << 52); }  // -1022 <= n <= 1023

// Nearest integer for |x| < 2^51, ties to even.
double nearest(double x) {
  constexpr double kMagic = 0x1.8p52;
  return (x + kMagic) - kMagic;
}

double sin_kernel(double r) {  // |r| <= π/4; Taylor to r^19: the next term is below 1e-22 of r
  const double s = r * r;
  double p = -1.0 / 121645100408832000.0;
  p = p * s + 1.0 / 355687428096000.0;
  p = p * s - 1.0 / 1307674368000.0;
  p = p * s + 1.0 / 6227020800.0;
  p = p * s - 1.0 / 39916800.0;
  p = p * s + 1.0 / 362880.0;
  p = p * s - 1.0 / 5040.0;
  p = p * s + 1.0 / 120.0;
  p = p * s - 1.0 / 6.0;
  return r + r * s * p;
}

double cos_kernel(double r) {  // |r| <= π/4; Taylor to r^18
  const double s = r * r;
  double p = -1.0 / 6402373705728000.0;
  p = p * s + 1.0 / 20922789888000.0;
  p = p * s - 1.0 / 87178291200.0;
  p = p * s + 1.0 / 479001600.0;
  p = p * s - 1.0 / 3628800.0;
  p = p * s + 1.0 / 40320.0;
  p = p * s - 1.0 / 720.0;
  p = p * s + 1.0 / 24.0;
  return (1.0 - 0.5 * s) + s * s * p;
}

}  // namespace

double own_exp(double x) {
  if (x != x) return x;
  if (x > 709.782712893384) return kInf;
  if (x < -745.1332191019412) return 0.0;
  const double n = nearest(x * 1.4426950408889634);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double p = 1.0 / 6227020800.0;  // Taylor to r^13: |r| <= 0.347 leaves r^14 / 14! < 5e-18
  for (const double c : {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0,
                         1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0}) {
    p = p * r + c;
  }
  const int whole = static_cast<int>(n);
  const int half = whole / 2;  // in two steps: n runs from -1075 to 1024
  return p * power_of_two(half) * power_of_two(whole - half);
}

double own_log(double x) {
  if (x != x) return x;
  if (x < 0.0) return kNan;
  if (x == 0.0) return -kInf;
  if (x == kInf) return x;
  int exponent = 0;
  if (x < 0x1p-1022) {  // subnormal
    x *= 0x1p54;
    exponent = -54;
  }
  uint64_t bits = to_bits(x);
  exponent += static_cast<int>(bits >> 52) - 1023;
  double m = from_bits((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);  // log m = 2 (s + s^3/3 + s^5/5 + …), |s| <= 0.1716
  const double z = s * s;
  double p = 1.0 / 23.0;
  for (const double c :
       {1.0 / 21.0, 1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0}) {
    p = p * z + c;
  }
  const double log_m = 2.0 * s + 2.0 * s * z * p;
  const double e = exponent;
  return e * kLn2High + (e * kLn2Low + log_m);
}

void own_sin_cos(double x, double* sin, double* cos) {
  if (!(x < 1e9 && x > -1e9)) {  // NaN too
    *sin = kNan;
    *cos = kNan;
    return;
  }
  const double n = nearest(x * 0.6366197723675814);
  double r = x;
  for (const double part : kHalfPi) r -= n * part;
  const double s = sin_kernel(r), c = cos_kernel(r);
  const auto quadrant = static_cast<unsigned>(static_cast<int64_t>(n)) & 3u;
  const double swapped_s = quadrant & 1u ? c : s, swapped_c = quadrant & 1u ? s : c;
  *sin = quadrant & 2u ? -swapped_s : swapped_s;
  *cos = quadrant == 1u || quadrant == 2u ? -swapped_c : swapped_c;
}

}  // namespace hasten
