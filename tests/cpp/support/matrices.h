// Random weight matrices as GGUF stores them, and their values in double, decoded here from the file bytes alone.
#pragma once

#include <cmath>
#include <cstdlib>
#include <memory>

#include "kernels/pack.h"
#include "support/check.h"

namespace hasten::test {

inline double half_value(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const double fraction = h & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0 + fraction, exponent - 25);
  return h & 0x8000 ? -magnitude : magnitude;
}

struct Matrix {
  WeightFormat format;
  int n, k;
  std::vector<uint8_t> rows;   // GGUF bytes
  std::vector<double> values;  // [n][k]
  std::unique_ptr<uint8_t, decltype(&std::free)> storage{nullptr, &std::free};
  PackedMatrix packed;
};

enum class Fill { kRandom, kLargestCodes, kSmallestCodes };

inline uint16_t random_scale(Random& random) { return static_cast<uint16_t>(0x1c00 + random.below(0x800)); }  // 2^-8 … 2^-6

inline uint8_t code_byte(Fill fill, WeightFormat format, Random& random) {
  if (fill == Fill::kLargestCodes) return format == WeightFormat::kQ8_0 ? 0x7f : 0xff;
  if (fill == Fill::kSmallestCodes) return format == WeightFormat::kQ8_0 ? 0x80 : 0x00;
  return static_cast<uint8_t>(random.below(256));
}

inline void append_half(Matrix& m, uint16_t h) {
  m.rows.push_back(static_cast<uint8_t>(h & 255));
  m.rows.push_back(static_cast<uint8_t>(h >> 8));
}

inline void append_group(Matrix& m, Fill fill, Random& random) {
  const bool is_q8 = m.format == WeightFormat::kQ8_0, has_min = m.format == WeightFormat::kQ4_1;
  const uint16_t d = random_scale(random), min = static_cast<uint16_t>(random_scale(random) | 0x8000);
  append_half(m, d);
  if (has_min) append_half(m, min);
  uint8_t bytes[32];
  for (int j = 0; j < (is_q8 ? 32 : 16); ++j) m.rows.push_back(bytes[j] = code_byte(fill, m.format, random));
  for (int i = 0; i < 32; ++i) {
    const int code = is_q8 ? static_cast<int8_t>(bytes[i]) : i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4;
    const double value = half_value(d) * (m.format == WeightFormat::kQ4_0 ? code - 8 : code);
    m.values.push_back(value + (has_min ? half_value(min) : 0.0));
  }
}

inline void append_float(Matrix& m, Random& random) {
  if (m.format == WeightFormat::kF16) {
    const auto h = static_cast<uint16_t>((random.below(2) << 15) | random.below(0x4000));  // up to 2, subnormals too
    append_half(m, h);
    m.values.push_back(half_value(h));
    return;
  }
  float value = random.normal();
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (m.format == WeightFormat::kBF16) {
    bits &= 0xffff0000u;
    std::memcpy(&value, &bits, sizeof(value));
    append_half(m, static_cast<uint16_t>(bits >> 16));
  } else {
    for (int byte = 0; byte < 4; ++byte) m.rows.push_back(static_cast<uint8_t>(bits >> (8 * byte)));
  }
  m.values.push_back(value);
}

inline Matrix make_matrix(WeightFormat format, int n, int k, uint32_t seed, Fill fill = Fill::kRandom) {
  Random random(seed);
  Matrix m{.format = format, .n = n, .k = k, .rows = {}, .values = {}, .packed = {}};
  const bool quantized = format >= WeightFormat::kQ8_0;
  for (int r = 0; r < n; ++r) {
    for (int i = 0; i < k; i += quantized ? kGroup : 1) quantized ? append_group(m, fill, random) : append_float(m, random);
  }
  m.storage.reset(static_cast<uint8_t*>(std::aligned_alloc(kPackAlign, packed_bytes(format, n, k))));
  m.packed = pack(format, n, k, m.rows.data(), source_row_bytes(format, k), m.storage.get());
  return m;
}

// Quantized activations with room of exactly the promised size.
struct Activations {
  Activations(const KernelTable& table, const std::vector<float>& x, int num_rows, int k)
      : operand(static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(num_rows) * 2 * static_cast<size_t>(k))),
                &std::free),
        scales(static_cast<size_t>(num_rows * (k / k_block_for(k)))),
        group_sums(static_cast<size_t>(num_rows * (k / kGroup))),
        rows{operand.get(), scales.data(), group_sums.data(), k, k_block_for(k)} {
    table.quantize_rows(x.data(), k, 0, num_rows, rows);
  }
  std::unique_ptr<uint8_t, decltype(&std::free)> operand;
  std::vector<float> scales;
  std::vector<int32_t> group_sums;
  QuantizedRows rows;
};

}  // namespace hasten::test
