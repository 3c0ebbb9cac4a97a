// The executor's native half: weights, K/V, requests and the team; runs one step at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/team.h"
#include "kernels/kernel_table.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/kv_memory.h"
#include "model/request.h"
#include "model/scratch.h"
#include "model/step.h"
#include "model/weights.h"

namespace hasten {

struct StepOutput {
  std::vector<ChunkOutput> chunks;  // in the order of the plan
  double compute_ms = 0.0;
  bool cancelled = false;
};

class Model {
 public:
  // Packs the tensors on the team. Throws std::invalid_argument, OutOfMemory, and std::runtime_error for too many threads.
  Model(const ModelConfig& config, const Limits& limits, const std::vector<TensorSource>& tensors, const KernelTable& kernels,
        int num_threads);
  ~Model();

  // Check and apply the plan, start the step, return at once. Throws std::invalid_argument for a bad plan (nothing has
  // changed then) and std::logic_error while a step is unfinished.
  void submit(const Plan& plan);

  // Wait for the step and take its result. Throws std::logic_error when none was submitted.
  StepOutput result();

  // The running step stops at the next phase; its result() has cancelled set. Without a running step: nothing.
  void cancel() { team_.cancel(); }

  const KernelTable& kernels() const { return kernels_; }
  int num_threads() const { return team_.size(); }
  int64_t weight_bytes() const { return weights_.bytes(); }
  int64_t scratch_bytes() const { return scratch_.size; }
  const KvMemory& kv() const { return kv_; }
  PhaseTimes& phase_times() { return forward_.times(); }

 private:
  void build_step(const Plan& plan);
  void build_chunk(const Chunk& chunk);
  StepOutput collect();

  ModelConfig config_;
  Limits limits_;
  const KernelTable& kernels_;
  Team team_;
  Weights weights_;
  KvMemory kv_;
  Scratch scratch_;
  Forward forward_;
  RequestTable requests_;
  Step step_;
  bool submitted_ = false;
  std::chrono::steady_clock::time_point started_at_{};
  double compute_ms_ = 0.0;
};

}  // namespace hasten
