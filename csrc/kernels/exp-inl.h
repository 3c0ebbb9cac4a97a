// e^x on sixteen lanes, the same bits in every table. Include after a vec_*.h.
#pragma once

namespace hasten {
namespace {

// Adding 1.5 · 2^23 rounds a float of magnitude below 2^22 to the nearest integer (ties to even) and leaves it in the low bits.
constexpr float kRoundMagic = 12582912.0f;
constexpr int32_t kRoundMagicBits = 0x4b400000;

// Nearest integer as int32, ties to even; |x| < 2^22.
inline IVec round_to_int(Vec x) { return isub(bits_of(add(x, set1(kRoundMagic))), iset1(kRoundMagicBits)); }

// Within 2 ulp; 0 below ln(2^-126), where a result would be subnormal; +inf above ln(largest float); NaN stays NaN.
inline Vec exp(Vec x) {
  const Vec lowest = set1(-87.3365402f), highest = set1(88.7228394f);
  const Vec clamped = max(lowest, min(highest, x));  // x second: NaN passes both
  const Vec shifted = fma(clamped, set1(1.44269502f), set1(kRoundMagic));
  const Vec n = sub(shifted, set1(kRoundMagic));
  Vec r = fma(n, set1(-0.693359375f), clamped);  // ln 2 in two parts: n · (the first) is exact
  r = fma(n, set1(2.12194440e-4f), r);
  Vec p = set1(1.0f / 5040.0f);  // Taylor to r^7: |r| <= 0.347 leaves r^8 / 8! < 6e-9, a tenth of an ulp
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  // 2^n in two steps, because n reaches 128, one more than an exponent holds.
  const IVec whole = isub(bits_of(shifted), iset1(kRoundMagicBits));
  const IVec half = shift_right<1>(whole);
  const IVec one = iset1(127);
  p = mul(p, from_bits(shift_left<23>(iadd(half, one))));
  p = mul(p, from_bits(shift_left<23>(iadd(isub(whole, half), one))));
  p = select_less(x, lowest, set1(0.0f), p);
  return select_less(highest, x, set1(__builtin_inff()), p);
}

}  // namespace
}  // namespace hasten
