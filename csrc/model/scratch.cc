#include "model/scratch.h"

#include <algorithm>

namespace hasten {
namespace {

constexpr int kOperandBytes = 160 << 10;  // of the 512 KiB and more of L2 that this year's cores have; panels need room too
constexpr int kAttentionRows = 48;        // query rows of a task: 48 KiB of scores

QuantizedRows take_quantized(Arena& arena, int64_t rows, int k) {
  QuantizedRows out;
  out.operand = arena.take<uint8_t>(rows * ((2 * int64_t{k} + 63) / 64 * 64));
  out.scales = arena.take<float>(rows * ((k + 31) / 32));  // the narrowest K-block is 32
  out.group_sums = arena.take<int32_t>(rows * ((k + 31) / 32));
  return out;
}

Partials take_partials(Arena& arena, int64_t rows, int head_dim) {
  return {arena.take<float>(rows), arena.take<float>(rows), arena.take<float>(rows * head_dim)};
}

int widest_input(const ModelConfig& model) { return std::max({model.hidden_size, model.q_size(), model.intermediate_size}); }

ThreadScratch take_thread(Arena& arena, const ModelConfig& model, int64_t rows) {
  const int columns = std::max(kPanel * kMaxItemPanels, model.head_dim);
  const int narrowest = std::min({model.hidden_size, model.q_size(), model.intermediate_size});
  const int64_t block = std::min<int64_t>(rows, rows_per_block(narrowest));
  const int64_t attention_rows = int64_t{attention_tokens(model)} * model.group_size();
  ThreadScratch out;
  out.normed = arena.take<float>(int64_t{kLocalRows} * model.hidden_size);
  out.quantized = take_quantized(arena, kLocalRows, widest_input(model));
  out.out = arena.take<float>(block * columns);
  out.out2 = arena.take<float>(block * columns);
  out.run = take_partials(arena, attention_rows, model.head_dim);
  out.span = take_partials(arena, attention_rows, model.head_dim);
  out.scores = arena.take<float>(attention_rows * kKvSpan);
  out.sampler = {arena.take<float>(model.vocab_size), arena.take<float>(model.vocab_size),
                 arena.take<int32_t>(model.vocab_size)};
  out.head_in = arena.take<float>(int64_t{kLocalRows} * model.hidden_size);
  return out;
}

}  // namespace

int rows_per_block(int k) { return std::clamp(kOperandBytes / (2 * k) / 16 * 16, 16, 256); }

int attention_tokens(const ModelConfig& model) { return std::max(1, kAttentionRows / model.group_size()); }

int max_split_tokens(int num_threads) { return std::max(4, num_threads); }

void Scratch::place(Arena& arena, const ModelConfig& model, const Limits& limits, int num_threads) {
  const int64_t rows = limits.max_num_batched_tokens;
  const int64_t spans = (int64_t{limits.max_model_len} + kKvSpan - 1) / kKvSpan;
  head_rows = static_cast<int>(std::min<int64_t>({kHeadRows, limits.max_num_seqs, rows}));
  x = arena.take<float>(rows * model.hidden_size);
  normed = arena.take<float>(rows * model.hidden_size);
  quantized = take_quantized(arena, rows, widest_input(model));
  q = arena.take<float>(rows * model.q_size());
  attention = arena.take<float>(rows * model.q_size());
  ffn = arena.take<float>(rows * model.intermediate_size);
  cos = arena.take<float>(rows * std::max(1, model.rope.dim / 2));
  sin = arena.take<float>(rows * std::max(1, model.rope.dim / 2));
  logits = arena.take<float>(int64_t{head_rows} * model.vocab_size);
  head_in = arena.take<float>(int64_t{head_rows} * model.hidden_size);
  partials = take_partials(arena, int64_t{max_split_tokens(num_threads)} * model.num_q_heads * spans, model.head_dim);
  threads.clear();
  for (int i = 0; i < num_threads; ++i) threads.push_back(take_thread(arena, model, rows));
}

Scratch::Scratch(const ModelConfig& model, const Limits& limits, int num_threads) {
  size = bytes(model, limits, num_threads);
  memory_ = HugeBuffer(static_cast<size_t>(size), "the working memory of a step");
  Arena arena(memory_.data());
  place(arena, model, limits, num_threads);
}

int64_t Scratch::bytes(const ModelConfig& model, const Limits& limits, int num_threads) {
  Scratch counted;
  Arena arena;
  counted.place(arena, model, limits, num_threads);
  return static_cast<int64_t>(arena.used());
}

}  // namespace hasten
