// The phases of a step, run by every member of the team over the rows of the step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cpu/team.h"
#include "kernels/kernel_table.h"
#include "model/attention.h"
#include "model/config.h"
#include "model/kv_memory.h"
#include "model/linear.h"
#include "model/phase_times.h"
#include "model/rope_table.h"
#include "model/scratch.h"
#include "model/step.h"
#include "model/weights.h"

namespace hasten {

class Forward {
 public:
  Forward(const ModelConfig& model, const KernelTable& kernels, const Weights& weights, const KvMemory& kv, Scratch& scratch,
          int num_threads);

  // Before the team starts: what depends on the step but on no layer.
  void plan(const Step& step) { attention_.plan(step); }

  // The body of the team's job: K/V of all rows written, `step.logit_rows` filled. Leaves early when cancelled.
  void run(Member& member, Step& step);

  PhaseTimes& times() { return times_; }

 private:
  // The input of a phase: `in` through RMS norm (when `norm` is given), and as integers when a matrix needs them.
  struct Source {
    const float* in;
    int k;
    const float* norm;
    bool quantize;
  };

  bool embed(Member& member, const Step& step);
  bool prepare(Member& member, const Source& source, int num_rows, Activations* out);
  bool layer(Member& member, const Step& step, int index);
  void qkv(Member& member, const Step& step, int index, const Activations& x);
  void qkv_head(const Step& step, int index, int head, int row_begin, int row_end, const Activations& x,
                ThreadScratch& scratch);
  void write_kv(const Step& step, int index, bool is_value, int kv_head, int row_begin, int row_end, float* heads);
  void rotate(int row, float* head);
  void add_product(Member& member, const PackedMatrix& w, const Activations& x, int num_rows);
  void gate_up(Member& member, const LayerWeights& w, const Activations& x, int num_rows);
  bool head(Member& member, Step& step);
  bool head_block(Member& member, Step& step, int begin, int end);
  void finish_row(const Step& step, LogitRow& row, const float* logits, ThreadScratch& scratch);
  bool end_phase(Member& member, Phase phase);

  ThreadScratch& own(const Member& member) { return scratch_.threads[static_cast<size_t>(member.index())]; }

  const ModelConfig& model_;
  const KernelTable& kernels_;
  const Weights& weights_;
  const KvMemory& kv_;
  Scratch& scratch_;
  RopeTable rope_;
  Attention attention_;
  PhaseTimes times_;
  int num_threads_;
};

}  // namespace hasten
