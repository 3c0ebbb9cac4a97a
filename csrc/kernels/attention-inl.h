// Attention over one span of keys, and the folding of spans. Lanes are tokens for q·K and dims for p·V, so that neither order
// of summation depends on how many rows share a load.
#pragma once

#include "kernels/kernel_table.h"
#include "kernels/kv_write-inl.h"
#include "kernels/sampling-inl.h"

namespace hasten {
namespace {

constexpr int kAttendRows = 4;  // 16 registers of 8 floats: 2 · 4 sums, 2 the loaded words, 2 decoded, 1 broadcast

// Value j of each word of `words`.
template <KvFormat kFormat>
inline Vec word_value(IVec words, int j) {
  if constexpr (kFormat == KvFormat::kBF16) {
    return from_bits(j == 0 ? shift_left<16>(words) : iand(words, iset1(static_cast<int32_t>(0xffff0000u))));
  } else if constexpr (kFormat == KvFormat::kF32) {
    return from_bits(words);
  } else {
    switch (j) {
      case 0:
        return to_float(shift_right<24>(shift_left<24>(words)));
      case 1:
        return to_float(shift_right<24>(shift_left<16>(words)));
      case 2:
        return to_float(shift_right<24>(shift_left<8>(words)));
      default:
        return to_float(shift_right<24>(words));
    }
  }
}

// Scores of kRows query rows against `max_keys` keys, 16 at a time; lanes past a row's keys hold anything.
template <KvFormat kFormat, int kRows>
void score_rows(const float* q, int64_t q_stride, int max_keys, const uint8_t* const* k_blocks, int head_dim, float scale,
                float* scores) {
  constexpr int kPer = values_per_word(kFormat);
  for (int first = 0; first < max_keys; first += kLanes) {
    const uint8_t* block = k_blocks[first / kKvBlock];
    const int half = first % kKvBlock / kLanes;
    const uint8_t* words = block + half * (head_dim / kPer) * kWordRow;
    Vec sums[kRows];
    for (int r = 0; r < kRows; ++r) sums[r] = set1(0.0f);
    for (int d = 0; d < head_dim; d += kPer, words += kWordRow) {
      const IVec loaded = iload(words);
#pragma GCC unroll 4
      for (int j = 0; j < kPer; ++j) {
        const Vec value = word_value<kFormat>(loaded, j);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r] = fma(set1(q[r * q_stride + d + j]), value, sums[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kFormat == KvFormat::kInt8) {
        sums[r] = mul(sums[r], load(reinterpret_cast<const float*>(block + kKvBlock * head_dim) + half * kLanes));
      }
      store(scores + r * kKvSpan + first, mul(sums[r], set1(scale)));
    }
  }
}

// Scores of one row to weights, in place: exp(score − max), for int8 times V's scale. Lanes past num_keys become 0.
template <KvFormat kFormat>
void weigh_row(float* scores, int num_keys, const uint8_t* const* v_blocks, int head_dim, float* m, float* l) {
  *m = row_max(scores, num_keys);
  const Vec shift = set1(*m), nothing = set1(0.0f);
  Vec sum = nothing;
  for (int first = 0; first < num_keys; first += kLanes) {
    const int left = num_keys - first < kLanes ? num_keys - first : kLanes;
    Vec p = select_first(left, exp(sub(load(scores + first), shift)), nothing);
    sum = add(sum, p);
    if constexpr (kFormat == KvFormat::kInt8) {
      const auto* v_scales = reinterpret_cast<const float*>(v_blocks[first / kKvBlock] + kKvBlock * head_dim);
      p = select_first(left, mul(p, load(v_scales + first % kKvBlock)), nothing);
    }
    store(scores + first, p);
  }
  *l = sum_tree(sum);
}

// acc[row][d] = Σ weight[row][t] · V[t][d], t ascending. Keys that all rows see go through the tile, the others one row at a
// time, so that no row multiplies a key it does not see.
template <KvFormat kFormat, int kRows>
void sum_values(const float* weights, const int* num_keys, const uint8_t* const* v_blocks, int head_dim, float* acc) {
  constexpr int kPer = values_per_word(kFormat);
  constexpr int kChunkBytes = kKvBlock / kPer * kWordRow;
  int common = num_keys[0];
  for (int r = 1; r < kRows; ++r) common = num_keys[r] < common ? num_keys[r] : common;
  common -= common % kPer;
  for (int chunk = 0; chunk < head_dim / kLanes; ++chunk) {
    Vec sums[kRows];
    for (int r = 0; r < kRows; ++r) sums[r] = set1(0.0f);
    for (int t = 0; t < common; t += kPer) {
      const IVec loaded = iload(v_blocks[t / kKvBlock] + chunk * kChunkBytes + t % kKvBlock / kPer * kWordRow);
#pragma GCC unroll 4
      for (int j = 0; j < kPer; ++j) {
        const Vec value = word_value<kFormat>(loaded, j);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r] = fma(set1(weights[r * kKvSpan + t + j]), value, sums[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int t = common; t < num_keys[r]; ++t) {
        const IVec loaded = iload(v_blocks[t / kKvBlock] + chunk * kChunkBytes + t % kKvBlock / kPer * kWordRow);
        sums[r] = fma(set1(weights[r * kKvSpan + t]), word_value<kFormat>(loaded, t % kPer), sums[r]);
      }
      store(acc + r * head_dim + chunk * kLanes, sums[r]);
    }
  }
}

struct SpanRows {  // rows of one tile; every one sees at least one key
  const float* q;
  int64_t q_stride;
  const int* num_keys;
  float *m, *l, *acc, *scratch;
};

template <KvFormat kFormat, int kRows>
void attend_tile(const SpanRows& rows, const uint8_t* const* k_blocks, const uint8_t* const* v_blocks, int head_dim,
                 float scale) {
  int most = rows.num_keys[0];
  for (int r = 1; r < kRows; ++r) most = rows.num_keys[r] > most ? rows.num_keys[r] : most;
  score_rows<kFormat, kRows>(rows.q, rows.q_stride, most, k_blocks, head_dim, scale, rows.scratch);
  for (int r = 0; r < kRows; ++r) {
    weigh_row<kFormat>(rows.scratch + r * kKvSpan, rows.num_keys[r], v_blocks, head_dim, rows.m + r, rows.l + r);
  }
  sum_values<kFormat, kRows>(rows.scratch, rows.num_keys, v_blocks, head_dim, rows.acc);
}

template <KvFormat kFormat>
void attend_rows(int count, const SpanRows& rows, const uint8_t* const* k_blocks, const uint8_t* const* v_blocks, int head_dim,
                 float scale) {
  switch (count) {
    case 1:
      return attend_tile<kFormat, 1>(rows, k_blocks, v_blocks, head_dim, scale);
    case 2:
      return attend_tile<kFormat, 2>(rows, k_blocks, v_blocks, head_dim, scale);
    case 3:
      return attend_tile<kFormat, 3>(rows, k_blocks, v_blocks, head_dim, scale);
    default:
      return attend_tile<kFormat, 4>(rows, k_blocks, v_blocks, head_dim, scale);
  }
}

void attend_span(KvFormat format, const float* q, int64_t q_stride, int num_rows, const int* num_keys,
                 const uint8_t* const* k_blocks, const uint8_t* const* v_blocks, int head_dim, float scale, float* m, float* l,
                 float* acc, float* scratch) {
  int row = 0;
  while (row < num_rows) {
    if (num_keys[row] <= 0) {
      m[row] = -__builtin_inff();
      l[row] = 0.0f;
      for (int d = 0; d < head_dim; ++d) acc[row * head_dim + d] = 0.0f;
      ++row;
      continue;
    }
    int count = 1;
    while (count < kAttendRows && row + count < num_rows && num_keys[row + count] > 0) ++count;
    const SpanRows tile{q + row * q_stride,     q_stride, num_keys + row, m + row, l + row, acc + row * head_dim,
                        scratch + row * kKvSpan};
    switch (format) {
      case KvFormat::kBF16:
        attend_rows<KvFormat::kBF16>(count, tile, k_blocks, v_blocks, head_dim, scale);
        break;
      case KvFormat::kInt8:
        attend_rows<KvFormat::kInt8>(count, tile, k_blocks, v_blocks, head_dim, scale);
        break;
      case KvFormat::kF32:
        attend_rows<KvFormat::kF32>(count, tile, k_blocks, v_blocks, head_dim, scale);
        break;
    }
    row += count;
  }
}

// e^x of one value by the sixteen-lane polynomial.
inline float exp_one(float x) {
  float lanes[kLanes];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

void attend_merge(float* m_run, float* l_run, float* acc_run, float m, float l, const float* acc, int head_dim) {
  const float largest = m > *m_run ? m : *m_run;
  if (largest == -__builtin_inff()) return;  // neither side has seen a key
  const float keep = exp_one(*m_run - largest), take = exp_one(m - largest);
  *m_run = largest;
  *l_run = __builtin_fmaf(l, take, *l_run * keep);
  const Vec keeps = set1(keep), takes = set1(take);
  for (int d = 0; d < head_dim; d += kLanes) {
    store(acc_run + d, fma(load(acc + d), takes, mul(load(acc_run + d), keeps)));
  }
}

void attend_finish(const float* acc, float l, float* out, int head_dim) {
  const Vec below = set1(l);
  for (int d = 0; d < head_dim; d += kLanes) store(out + d, div(load(acc + d), below));
}

}  // namespace
}  // namespace hasten
