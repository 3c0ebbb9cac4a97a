// Attention over a span: every table against the scalar one, and the scalar one against a dense softmax in double.
#pragma once

#include <algorithm>
#include <cmath>

#include "support/check.h"
#include "support/tables.h"

namespace hasten::test {

struct SpanCase {
  KvFormat format;
  int head_dim, num_rows, most_keys;
  std::vector<float> q, k, v;
  std::vector<int> num_keys;
};

struct SpanResult {
  std::vector<float> m, l, acc, out;
};

inline size_t head_bytes(KvFormat format, int head_dim) {
  switch (format) {
    case KvFormat::kF32:
      return static_cast<size_t>(4 * kKvBlock * head_dim);
    case KvFormat::kBF16:
      return static_cast<size_t>(2 * kKvBlock * head_dim);
    default:
      return static_cast<size_t>(kKvBlock * (head_dim + 4));  // one float32 scale a token
  }
}

inline SpanCase make_span(KvFormat format, int head_dim, std::vector<int> num_keys, uint32_t seed) {
  Random random(seed);
  const int most = *std::max_element(num_keys.begin(), num_keys.end());
  const auto rows = num_keys.size(), dims = static_cast<size_t>(head_dim), keys = static_cast<size_t>(most);
  return {format,
          head_dim,
          static_cast<int>(rows),
          most,
          random.normals(rows * dims),
          random.normals(keys * dims),
          random.normals(keys * dims),
          std::move(num_keys)};
}

// Slots past the last key hold NaN patterns: nothing may multiply them.
inline SpanResult run_span(const KernelTable& table, const SpanCase& c) {
  const size_t bytes = head_bytes(c.format, c.head_dim);
  const int num_blocks = (c.most_keys + kKvBlock - 1) / kKvBlock;
  std::vector<std::vector<uint8_t>> k_store(static_cast<size_t>(num_blocks), std::vector<uint8_t>(bytes, 0xff)),
      v_store = k_store;
  std::vector<const uint8_t*> k_blocks, v_blocks;
  for (auto& block : k_store) k_blocks.push_back(block.data());
  for (auto& block : v_store) v_blocks.push_back(block.data());
  for (int t = 0; t < c.most_keys; ++t) {
    table.write_k(c.format, c.k.data() + t * c.head_dim, c.head_dim, t % kKvBlock,
                  k_store[static_cast<size_t>(t / kKvBlock)].data());
    table.write_v(c.format, c.v.data() + t * c.head_dim, c.head_dim, t % kKvBlock,
                  v_store[static_cast<size_t>(t / kKvBlock)].data());
  }
  const auto rows = static_cast<size_t>(c.num_rows), values = rows * static_cast<size_t>(c.head_dim);
  SpanResult r{std::vector<float>(rows), std::vector<float>(rows), std::vector<float>(values), std::vector<float>(values)};
  std::vector<float> scratch(rows * kKvSpan);
  table.attend_span(c.format, c.q.data(), c.head_dim, c.num_rows, c.num_keys.data(), k_blocks.data(), v_blocks.data(),
                    c.head_dim, 0.125f, r.m.data(), r.l.data(), r.acc.data(), scratch.data());
  for (size_t row = 0; row < rows; ++row) {
    const size_t at = row * static_cast<size_t>(c.head_dim);
    if (c.num_keys[row] > 0) table.attend_finish(r.acc.data() + at, r.l[row], r.out.data() + at, c.head_dim);
  }
  return r;
}

// bf16 keeps 8 bits (2^-9 relative), int8 half a step of max / 127 <= 4.5 / 254: errors in scores (times |q| <= 4
// sqrt(head_dim) / 8) and in values; 0.02 and 0.15 cover both at these sizes, against outputs of order 1. f32 rounds sums only:
// a score is of order head_dim, its error 2^-24 · 256 · sqrt(256) / 8 at most.
inline double dense_bound(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return 1e-4;
    case KvFormat::kBF16:
      return 0.02;
    default:
      return 0.15;
  }
}

inline void check_dense(const SpanCase& c, const SpanResult& r) {
  const double bound = dense_bound(c.format);
  for (int row = 0; row < c.num_rows; ++row) {
    const int keys = c.num_keys[static_cast<size_t>(row)];
    if (keys == 0) {
      check(std::isinf(r.m[static_cast<size_t>(row)]) && r.l[static_cast<size_t>(row)] == 0.0f, "a row without keys");
      continue;
    }
    std::vector<double> p(static_cast<size_t>(keys));
    double sum = 0.0;
    for (int t = 0; t < keys; ++t) {
      double score = 0.0;
      for (int d = 0; d < c.head_dim; ++d) {
        score += static_cast<double>(c.q[static_cast<size_t>(row * c.head_dim + d)]) *
                 static_cast<double>(c.k[static_cast<size_t>(t * c.head_dim + d)]);
      }
      sum += p[static_cast<size_t>(t)] = std::exp(score * 0.125);
    }
    for (int d = 0; d < c.head_dim; ++d) {
      double expected = 0.0;
      for (int t = 0; t < keys; ++t)
        expected += p[static_cast<size_t>(t)] / sum * static_cast<double>(c.v[static_cast<size_t>(t * c.head_dim + d)]);
      const double error = std::fabs(expected - static_cast<double>(r.out[static_cast<size_t>(row * c.head_dim + d)]));
      check(error <= bound, "attention row " + std::to_string(row) + " dim " + std::to_string(d));
    }
  }
}

inline void check_merge(const SpanCase& c, const SpanResult& r, const KernelTable& table, const std::string& name) {
  SpanResult expected = r, actual = r;
  for (size_t row = 1; row < r.m.size(); ++row) {
    const float* acc = r.acc.data() + row * static_cast<size_t>(c.head_dim);
    kScalarKernels.attend_merge(&expected.m[0], &expected.l[0], expected.acc.data(), r.m[row], r.l[row], acc, c.head_dim);
    table.attend_merge(&actual.m[0], &actual.l[0], actual.acc.data(), r.m[row], r.l[row], acc, c.head_dim);
  }
  check_same_bits(actual.acc, expected.acc, name + " attend_merge acc");
  check_same_bits(actual.l, expected.l, name + " attend_merge l");
}

inline void test_attention() {
  const std::vector<int> key_counts[] = {
      {1}, {2}, {15}, {16, 17}, {31, 32, 33}, {255, 256, 1, 0}, {0, 3, 4, 5, 6, 7}, {100, 101, 102, 103, 104}};
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kInt8, KvFormat::kF32}) {
    for (const int head_dim : {16, 64, 80, 256}) {
      for (const auto& counts : key_counts) {
        const SpanCase c = make_span(format, head_dim, counts, 31);
        const SpanResult expected = run_span(kScalarKernels, c);
        check_dense(c, expected);
        for (const auto& [name, table] : all_tables()) {
          const SpanResult actual = run_span(*table, c);
          check_same_bits(actual.m, expected.m, name + " attend_span m");
          check_same_bits(actual.l, expected.l, name + " attend_span l");
          check_same_bits(actual.acc, expected.acc, name + " attend_span acc");
          check_same_bits(actual.out, expected.out, name + " attend_finish");
          check_merge(c, expected, *table, name);
        }
      }
    }
  }
}

}  // namespace hasten::test
