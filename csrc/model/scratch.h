// Everything a step writes besides the KV store: one allocation, its size known before it is made.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "model/config.h"
#include "model/memory.h"
#include "model/sampler.h"

namespace hasten {

constexpr int kLocalRows = 4;      // so few rows are normed and quantized by each thread for itself: cheaper than a barrier
constexpr int kMaxItemPanels = 8;  // panels of a matrix in one piece of work
constexpr int kHeadRows = 64;      // rows of logits at once

// Partial attention results of one row of one head, by span.
struct Partials {
  float* m = nullptr;    // [capacity]
  float* l = nullptr;    // [capacity]
  float* acc = nullptr;  // [capacity][head_dim]
};

struct ThreadScratch {
  float* normed = nullptr;  // [kLocalRows][hidden]
  QuantizedRows quantized;  // kLocalRows rows of the widest input
  float* out = nullptr;     // [row block][16 * kMaxItemPanels], or a row block of one head
  float* out2 = nullptr;    // the same, for up beside gate
  Partials run, span;       // attention rows of one task
  float* scores = nullptr;  // [attention rows][kKvSpan]
  SamplerScratch sampler;
  float* head_in = nullptr;  // [kLocalRows][hidden]
};

// How many rows a phase takes at once so that their operands stay in L2 while panels pass.
int rows_per_block(int k);

// How many tokens of a chunk an attention task takes.
int attention_tokens(const ModelConfig& model);

// Most rows whose attention is spread over threads by span; steps with more have enough tasks without.
int max_split_tokens(int num_threads);

class Scratch {
 public:
  Scratch(const ModelConfig& model, const Limits& limits, int num_threads);  // throws OutOfMemory
  static int64_t bytes(const ModelConfig& model, const Limits& limits, int num_threads);

  float* x = nullptr;          // [rows][hidden] residual stream
  float* normed = nullptr;     // [rows][hidden]
  QuantizedRows quantized;     // rows of the widest input
  float* q = nullptr;          // [kv head][rows of the step][group][head_dim]
  float* attention = nullptr;  // [rows][num_q_heads * head_dim]
  float* ffn = nullptr;        // [rows][intermediate]
  float* cos = nullptr;        // [rows][rope.dim / 2]
  float* sin = nullptr;
  float* logits = nullptr;   // [head_rows][vocab]
  float* head_in = nullptr;  // [head_rows][hidden]
  Partials partials;
  std::vector<ThreadScratch> threads;
  int head_rows = 0;
  int64_t size = 0;

 private:
  Scratch() = default;
  void place(Arena& arena, const ModelConfig& model, const Limits& limits, int num_threads);
  HugeBuffer memory_;
};

}  // namespace hasten
