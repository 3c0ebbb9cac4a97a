// The attention phase: tasks over (run of tokens of one chunk, KV head, spans of 256 keys).
//
// Spans start at absolute position 0 and are merged in index order, whoever computed them: a task with all spans of its rows
// merges as it goes; when a step has few rows, each span is a task and the last one to finish merges them.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "cpu/team.h"
#include "kernels/kernel_table.h"
#include "model/config.h"
#include "model/kv_memory.h"
#include "model/scratch.h"
#include "model/step.h"

namespace hasten {

class Attention {
 public:
  Attention(const ModelConfig& model, const KernelTable& kernels, const KvMemory& kv, Scratch& scratch, int num_threads);

  // Build the tasks of a step; they serve every layer. One thread, between steps.
  void plan(const Step& step);

  // Pull and run tasks of one layer: reads scratch.q, writes scratch.attention. Every member.
  void run(Member& member, const Step& step, int layer);

 private:
  struct Task {
    int chunk;
    int kv_head;
    int token_begin, token_end;  // within the chunk
    int span_begin, span_end;
    int64_t partial;  // index of the first span's first row in scratch.partials; -1: the task merges its spans itself
    int countdown;    // which counter says how many spans are still open
  };

  void plan_chunk(const Step& step, int chunk, int64_t* next_partial, int* next_countdown);
  void run_whole(const Step& step, const Task& task, int layer, ThreadScratch& scratch);
  void run_split(const Step& step, const Task& task, int layer, ThreadScratch& scratch);
  void attend(const Step& step, const Task& task, int layer, int span, const Partials& out, float* scores);
  void merge_row(const Partials& run, int64_t run_row, const Partials& span, int64_t span_row);
  void finish_rows(const Step& step, const Task& task, const Partials& run);
  int num_keys(const Step& step, const Task& task, int row, int span) const;

  const ModelConfig& model_;
  const KernelTable& kernels_;
  const KvMemory& kv_;
  Scratch& scratch_;
  int split_tokens_;
  float scale_;
  std::vector<Task> tasks_;
  std::unique_ptr<std::atomic<int>[]> open_spans_;  // [split_tokens * num_kv_heads]
};

}  // namespace hasten
