#include "model/model.h"

#include <stdexcept>
#include <utility>

namespace hasten {
namespace {

const ModelConfig& checked(const ModelConfig& config, const Limits& limits) {
  check_config(config, limits);
  return config;
}

}  // namespace

Model::Model(const ModelConfig& config, const Limits& limits, const std::vector<TensorSource>& tensors,
             const KernelTable& kernels, int num_threads)
    : config_(checked(config, limits)),
      limits_(limits),
      kernels_(kernels),
      team_(num_threads),
      weights_(config_, tensors, team_),
      kv_(kv_layout(config_, limits.kv_format), limits.num_blocks),
      scratch_(config_, limits_, num_threads),
      forward_(config_, kernels_, weights_, kv_, scratch_, num_threads),
      requests_(config_, limits_) {}

Model::~Model() {
  team_.cancel();
  team_.wait();
}

void Model::submit(const Plan& plan) {
  if (submitted_) throw std::logic_error("a step is running: take its result first");
  started_at_ = std::chrono::steady_clock::now();
  requests_.apply(plan);
  build_step(plan);
  forward_.plan(step_);
  forward_.times().begin();
  submitted_ = true;
  const auto done = [this] {
    compute_ms_ = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started_at_).count();
  };
  if (step_.rows.empty()) {
    done();
    return;
  }
  team_.start([this](Member& member) { forward_.run(member, step_); }, done);
}

StepOutput Model::result() {
  if (!submitted_) throw std::logic_error("no step was submitted");
  team_.wait();
  submitted_ = false;
  return collect();
}

void Model::build_step(const Plan& plan) {
  step_.chunks.clear();
  step_.rows.clear();
  step_.logit_rows.clear();
  for (const Chunk& chunk : plan.chunks) build_chunk(chunk);
}

void Model::build_chunk(const Chunk& chunk) {
  Request& request = requests_.at(chunk.id);
  const SamplingConfig& sampling = request.sampling;
  const int index = static_cast<int>(step_.chunks.size());
  const auto num_known = static_cast<int>(request.tokens.size());
  step_.chunks.push_back({&request, step_.num_rows(), static_cast<int>(chunk.start), static_cast<int>(chunk.num_tokens)});
  for (int64_t i = 0; i < chunk.num_tokens; ++i) {
    const int position = static_cast<int>(chunk.start + i);
    LogitRow logits;
    logits.row = step_.num_rows();
    logits.chunk = index;
    logits.draws = position == num_known - 1 && sampling.max_tokens != 0;
    if (sampling.prompt_logprobs >= 0 && position + 1 < request.prompt_len) {
      logits.prompt_token = request.tokens[static_cast<size_t>(position) + 1];
    }
    if (logits.draws || logits.prompt_token >= 0) step_.logit_rows.push_back(std::move(logits));
    step_.rows.push_back({request.tokens[static_cast<size_t>(position)], position, index});
  }
}

StepOutput Model::collect() {
  StepOutput out;
  out.chunks.resize(step_.chunks.size());
  out.compute_ms = compute_ms_;
  out.cancelled = !step_.rows.empty() && team_.cancelled();
  if (out.cancelled) return out;
  for (LogitRow& row : step_.logit_rows) {
    ChunkOutput& chunk = out.chunks[static_cast<size_t>(row.chunk)];
    Request& request = *step_.chunks[static_cast<size_t>(row.chunk)].request;
    if (row.failed) {
      chunk = ChunkOutput{};
      chunk.error = "the model gave no number (NaN) for position " +
                    std::to_string(step_.rows[static_cast<size_t>(row.row)].position + 1);
    }
    if (!chunk.error.empty()) continue;
    if (row.prompt_token >= 0) chunk.prompt_logprobs.push_back(std::move(row.prompt_logprob));
    if (!row.draws) continue;
    chunk.token = row.drawn;
    if (request.sampling.logprobs >= 0) chunk.logprobs.push_back(std::move(row.logprob));
    request.append(row.drawn);
  }
  return out;
}

}  // namespace hasten
