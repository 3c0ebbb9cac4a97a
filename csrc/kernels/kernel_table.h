// Every kernel, one function pointer each. Built once per instruction set (isa_*.cc), chosen once (cpu/dispatch.h).
//
// Rules that make the numbers the same in every table (design, section 6):
//  - Integer dot products are exact. Float steps follow the order written beside each kernel, always with explicit fma.
//  - "16-lane sum": lane[i] accumulates elements i, i+16, i+32, … in order (fma where there is a product); the lanes are
//    then added as a tree: lane[i] += lane[i+8], then +4, +2, +1. Elements past the end count as +0.
//  - A row's result depends on that row alone.
// A kernel takes pointers and sizes; it allocates nothing, throws nothing, and knows no Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hasten {

enum class Isa : int { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

enum class WeightFormat : int { kF32 = 0, kF16 = 1, kBF16 = 2, kQ8_0 = 3, kQ4_0 = 4, kQ4_1 = 5 };

constexpr int kPanel = 16;    // output rows (columns of the result) in a panel
constexpr int kGroup = 32;    // weights under one scale in GGUF formats
constexpr int kKvBlock = 32;  // tokens in a KV block
constexpr int kKvSpan = 256;  // keys in an attention span; spans start at absolute position 0
constexpr int kMaxHeadDim = 256;

// A weight matrix [n, k] (n outputs, k inputs) packed in panels of 16 outputs; n is padded with zero weights.
//
//  Q4_0, Q4_1: codes[panel][k/8][16 rows][4 bytes]; byte j of a row holds weight k+j in its low and k+4+j in its high
//              nibble. scales (and mins for Q4_1): float16 [panel][k/32][16].
//  Q8_0:       codes[panel][k/4][16 rows][4 bytes], each code + 128. scales: float16 [panel][k/32][16].
//  F32, F16, BF16: codes[panel][k][16] of the element type; no scales.
// Value of a weight: Q4_0 d·(c − 8); Q4_1 d·c + m; Q8_0 d·(c − 128).
struct PackedMatrix {
  WeightFormat format = WeightFormat::kF32;
  int n = 0;        // outputs, not padded
  int k = 0;        // inputs; a multiple of 32 for quantized formats
  int k_block = 0;  // activation block: the largest of 256, 192, 128, 64 that divides k, else 32
  const void* codes = nullptr;
  const uint16_t* scales = nullptr;
  const uint16_t* mins = nullptr;  // Q4_1 only
  int num_panels() const { return (n + kPanel - 1) / kPanel; }
};

// The largest of 256, 192, 128, 64 that divides k, else 32.
int k_block_for(int k);

// Rows of activations as integers: x[k] ≈ scale[k / k_block] · wide[k], |wide| ≤ 32258, a number that two int8
// planes hold (wide = 256·value + residual), or one of 16 bits. `operand` is opaque: 2·k bytes a row, in the order the same
// table's matmul reads it.
struct QuantizedRows {
  uint8_t* operand = nullptr;     // [rows][2 * k], 64-byte aligned rows
  float* scales = nullptr;        // [rows][k / k_block]
  int32_t* group_sums = nullptr;  // [rows][k / 32]: sum of wide over each group of 32
  int k = 0;
  int k_block = 0;
};

// One KV format and shape; offsets as in src/hasten/kv_store.py (the layout comment there decides).
enum class KvFormat : int { kBF16 = 0, kInt8 = 1, kF32 = 2 };

struct KernelTable {
  Isa isa;

  // amax over each k_block; scale = amax / 32258 (0 when amax < 1e-30, NaN/inf propagate through scale);
  // wide = rne(x · (32258 / amax)) clamped to ±32258.
  void (*quantize_rows)(const float* x, int64_t x_stride, int row_begin, int row_end, const QuantizedRows& out);

  // out[row][16·panel + lane] for panels [panel_begin, panel_end) and rows [row_begin, row_end) (row r of `x` goes to row r
  // of `out`); lanes past n are not stored. Per output, left to right over K-blocks b: t = 0; per group g of the block:
  // dot = exact int32 Σ wide·(c − bias); t = fma(d, float(dot), t); Q4_1 also t = fma(m, float(group_sum), t);
  // then out = fma(scale_b, t, out), starting from 0.
  void (*matmul_quantized)(const PackedMatrix& w, int panel_begin, int panel_end, const QuantizedRows& x, int row_begin,
                           int row_end, float* out, int64_t out_stride);

  // Same for float weights: per output and run of 64 inputs, t = fma(w, x, t) left to right, then out = out + t.
  void (*matmul_dense)(const PackedMatrix& w, int panel_begin, int panel_end, const float* x, int64_t x_stride, int row_begin,
                       int row_end, float* out, int64_t out_stride);

  // One row of a packed matrix as float32 (embedding look-up): out[k], value = fma(d, c, m) or d · (c − bias).
  void (*unpack_row)(const PackedMatrix& w, int row, float* out);

  // out = x · (1 / sqrt(mean(x²) + eps)) · weight; sum of squares is a 16-lane sum; (x · r) · weight in that order.
  void (*rms_norm)(const float* x, const float* weight, float* out, int n, float eps);

  // x[i] += y[i]
  void (*add)(float* x, const float* y, int n);

  // out[i] = gate[i] / (1 + exp(−gate[i])) · up[i], own exp
  void (*silu_mul)(const float* gate, const float* up, float* out, int n);

  // Rotate the first `dim` values of one head: interleaved pairs (2i, 2i+1), else (i, i + dim/2); cos, sin: [dim / 2].
  // a' = fma(a, cos, −(b · sin)), b' = fma(a, sin, b · cos).
  void (*rope)(float* head, const float* cos, const float* sin, int dim, bool interleaved);

  // Normalised Hadamard transform over blocks of the largest power of two dividing n (butterflies in order of growing
  // stride, one multiplication by 1/sqrt(size) at the end).
  void (*hadamard)(float* x, int n);

  // Write one token's K (after RoPE and, for int8, rotation) or V of one head into its packed place.
  // `head_base`: the head's K (or V) area of the block; slot: token index in the block.
  void (*write_k)(KvFormat format, const float* k, int head_dim, int slot, uint8_t* head_base);
  void (*write_v)(KvFormat format, const float* v, int head_dim, int slot, uint8_t* head_base);

  // Attention of `num_rows` query rows of one KV head over one span of at most 256 keys.
  //   q: [num_rows] rows of head_dim float32 at q_stride; num_keys: [num_rows] keys each row sees in this span (0…256).
  //   k_blocks, v_blocks: the head's K and V area of each block of the span, [ceil(max num_keys / 32)].
  // Per row: score[t] = scale · Σ_d q[d]·K[t][d] (fma, d ascending; int8: codes as floats, then · k_scale[t], then · scale);
  // m = max; p[t] = exp(score − m); l = 16-lane sum of p; acc[d] = Σ_t p[t]·V[t][d] (fma, t ascending; int8: (p·v_scale)·code).
  // What slots at or past num_keys[row] hold never reaches a result. num_keys 0 gives m = −inf, l = 0, acc = 0.
  //   scratch: num_rows * 256 floats.
  void (*attend_span)(KvFormat format, const float* q, int64_t q_stride, int num_rows, const int* num_keys,
                      const uint8_t* const* k_blocks, const uint8_t* const* v_blocks, int head_dim, float scale, float* m,
                      float* l, float* acc /* [num_rows][head_dim] */, float* scratch);

  // Fold span results in index order: M' = max(M, m); a = exp(M − M'), b = exp(m − M'); L = fma(l, b, L·a);
  // A[d] = fma(acc[d], b, A[d]·a). The first span is copied. Then (attend_finish) out[d] = A[d] / L.
  void (*attend_merge)(float* m_run, float* l_run, float* acc_run, float m, float l, const float* acc, int head_dim);
  void (*attend_finish)(const float* acc, float l, float* out, int head_dim);

  // Largest value and the lowest index holding it; NaN never wins. Returns -1 when every value is NaN or -inf.
  int (*argmax)(const float* x, int n);

  // log Σ exp(x) = m + log(16-lane sum of exp(x − m)), own exp and log.
  float (*log_sum_exp)(const float* x, int n);

  // out[i] = exp(x[i] · scale − shift) (own exp), for the sampler.
  void (*exp_scaled)(const float* x, float scale, float shift, float* out, int n);
};

extern const KernelTable kScalarKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

// Own double-precision functions, the same bits on every machine (libm picks code by CPU). |relative error| < 1e-14.
double own_exp(double x);
double own_log(double x);
void own_sin_cos(double x, double* sin, double* cos);  // |x| < 1e9

}  // namespace hasten
