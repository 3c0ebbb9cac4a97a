#include "model/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace hasten {
namespace {

constexpr int kSplitChunk = 4;  // chunks of at most so many tokens are spread over threads by span
constexpr int kBlocksPerSpan = kKvSpan / kKvBlock;

int num_spans(int num_keys) { return (num_keys + kKvSpan - 1) / kKvSpan; }

}  // namespace

Attention::Attention(const ModelConfig& model, const KernelTable& kernels, const KvMemory& kv, Scratch& scratch,
                     int num_threads)
    : model_(model),
      kernels_(kernels),
      kv_(kv),
      scratch_(scratch),
      split_tokens_(max_split_tokens(num_threads)),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.head_dim)))),
      open_spans_(std::make_unique<std::atomic<int>[]>(static_cast<size_t>(split_tokens_) * model.num_kv_heads)) {}

void Attention::plan(const Step& step) {
  tasks_.clear();
  int64_t next_partial = 0;
  int next_countdown = 0;
  const bool few = step.num_rows() <= split_tokens_;
  for (int i = 0; i < static_cast<int>(step.chunks.size()); ++i) {
    plan_chunk(step, i, few ? &next_partial : nullptr, &next_countdown);
  }
}

void Attention::plan_chunk(const Step& step, int index, int64_t* next_partial, int* next_countdown) {
  const ChunkRun& chunk = step.chunks[static_cast<size_t>(index)];
  const int spans = num_spans(chunk.start + chunk.num_tokens);
  if (next_partial != nullptr && spans > 1 && chunk.num_tokens <= std::min(kSplitChunk, attention_tokens(model_))) {
    for (int head = 0; head < model_.num_kv_heads; ++head) {
      const int counter = (*next_countdown)++;
      open_spans_[static_cast<size_t>(counter)].store(spans, std::memory_order_relaxed);
      for (int span = 0; span < spans; ++span) {
        tasks_.push_back({index, head, 0, chunk.num_tokens, span, span + 1, *next_partial, counter});
      }
      *next_partial += int64_t{spans} * chunk.num_tokens * model_.group_size();
    }
    return;
  }
  // the last tokens see most keys: they go first, so that no thread is left alone with one at the end
  const int step_tokens = attention_tokens(model_);
  for (int end = chunk.num_tokens; end > 0; end -= step_tokens) {
    for (int head = 0; head < model_.num_kv_heads; ++head) {
      tasks_.push_back({index, head, std::max(0, end - step_tokens), end, 0, num_spans(chunk.start + end), -1, 0});
    }
  }
}

void Attention::run(Member& member, const Step& step, int layer) {
  ThreadScratch& scratch = scratch_.threads[static_cast<size_t>(member.index())];
  for (int i; (i = member.next()) < static_cast<int>(tasks_.size());) {
    const Task& task = tasks_[static_cast<size_t>(i)];
    if (task.partial < 0) {
      run_whole(step, task, layer, scratch);
    } else {
      run_split(step, task, layer, scratch);
    }
  }
}

int Attention::num_keys(const Step& step, const Task& task, int row, int span) const {
  const int position = step.chunks[static_cast<size_t>(task.chunk)].start + task.token_begin + row / model_.group_size();
  return std::clamp(position + 1 - span * kKvSpan, 0, kKvSpan);
}

void Attention::attend(const Step& step, const Task& task, int layer, int span, const Partials& out, float* scores) {
  const ChunkRun& chunk = step.chunks[static_cast<size_t>(task.chunk)];
  const int group = model_.group_size();
  const int num_rows = (task.token_end - task.token_begin) * group;
  std::array<int, kMaxGroupSize> keys;  // also more than attention_tokens · group_size of smaller groups
  for (int row = 0; row < num_rows; ++row) keys[static_cast<size_t>(row)] = num_keys(step, task, row, span);
  std::array<const uint8_t*, kBlocksPerSpan> k_blocks{};
  std::array<const uint8_t*, kBlocksPerSpan> v_blocks{};
  const int num_blocks = (keys[static_cast<size_t>(num_rows - 1)] + kKvBlock - 1) / kKvBlock;
  for (int i = 0; i < num_blocks; ++i) {
    const int32_t block = chunk.request->block_table[static_cast<size_t>(span * kBlocksPerSpan + i)];
    k_blocks[static_cast<size_t>(i)] = kv_.head(block, layer, false, task.kv_head);
    v_blocks[static_cast<size_t>(i)] = kv_.head(block, layer, true, task.kv_head);
  }
  const int64_t first_row =
      (int64_t{task.kv_head} * step.num_rows() + chunk.row_begin + task.token_begin) * group;  // in scratch.q
  kernels_.attend_span(kv_.layout().format, scratch_.q + first_row * model_.head_dim, model_.head_dim, num_rows, keys.data(),
                       k_blocks.data(), v_blocks.data(), model_.head_dim, scale_, out.m, out.l, out.acc, scores);
}

void Attention::merge_row(const Partials& run, int64_t run_row, const Partials& span, int64_t span_row) {
  const int dim = model_.head_dim;
  kernels_.attend_merge(run.m + run_row, run.l + run_row, run.acc + run_row * dim, span.m[span_row], span.l[span_row],
                        span.acc + span_row * dim, dim);
}

void Attention::finish_rows(const Step& step, const Task& task, const Partials& run) {
  const ChunkRun& chunk = step.chunks[static_cast<size_t>(task.chunk)];
  const int group = model_.group_size();
  const int dim = model_.head_dim;
  const int num_rows = (task.token_end - task.token_begin) * group;
  for (int row = 0; row < num_rows; ++row) {
    const int64_t token_row = chunk.row_begin + task.token_begin + row / group;
    const int head = task.kv_head * group + row % group;
    float* const out = scratch_.attention + token_row * model_.q_size() + int64_t{head} * dim;
    kernels_.attend_finish(run.acc + int64_t{row} * dim, run.l[row], out, dim);
  }
}

void Attention::run_whole(const Step& step, const Task& task, int layer, ThreadScratch& scratch) {
  const int num_rows = (task.token_end - task.token_begin) * model_.group_size();
  attend(step, task, layer, 0, scratch.run, scratch.scores);
  for (int span = 1; span < task.span_end; ++span) {
    attend(step, task, layer, span, scratch.span, scratch.scores);
    for (int row = 0; row < num_rows; ++row) {
      if (num_keys(step, task, row, span) > 0) merge_row(scratch.run, row, scratch.span, row);
    }
  }
  finish_rows(step, task, scratch.run);
}

void Attention::run_split(const Step& step, const Task& task, int layer, ThreadScratch& scratch) {
  const int num_rows = (task.token_end - task.token_begin) * model_.group_size();
  const auto span_rows = [&](int span) {
    const int64_t row = task.partial + int64_t{span} * num_rows;
    const Partials& all = scratch_.partials;
    return Partials{all.m + row, all.l + row, all.acc + row * model_.head_dim};
  };
  attend(step, task, layer, task.span_begin, span_rows(task.span_begin), scratch.scores);
  std::atomic<int>& open = open_spans_[static_cast<size_t>(task.countdown)];
  if (open.fetch_sub(1, std::memory_order_acq_rel) > 1) return;

  const int spans = num_spans(step.chunks[static_cast<size_t>(task.chunk)].start + task.token_end);
  open.store(spans, std::memory_order_relaxed);  // for the next layer, which starts behind a barrier
  const Partials run = span_rows(0);
  for (int span = 1; span < spans; ++span) {
    for (int row = 0; row < num_rows; ++row) {
      if (num_keys(step, task, row, span) > 0) merge_row(run, row, span_rows(span), row);
    }
  }
  finish_rows(step, task, run);
}

}  // namespace hasten
