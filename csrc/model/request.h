// What the executor keeps of each live request, and the delta (hasten.scheduler.plan.StepPlan) that changes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/config.h"

namespace hasten {

using RequestId = int64_t;

// As hasten.request.SamplingParams; `logprobs` and `prompt_logprobs` are -1 when not asked for.
struct SamplingConfig {
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  uint64_t seed = 0;
  int64_t max_tokens = -1;
  int logprobs = -1;
  int prompt_logprobs = -1;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::vector<std::pair<int64_t, double>> logit_bias;

  bool has_penalties() const { return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0; }
};

// A token of the prompt or the answer, and how often it was drawn.
struct TokenUse {
  int num_output = 0;
};

struct Request {
  int prompt_len = 0;
  std::vector<int32_t> tokens;  // prompt + drawn
  std::vector<int32_t> block_table;
  SamplingConfig sampling;
  std::unordered_map<int32_t, TokenUse> uses;  // kept only with penalties

  void append(int32_t token);
};

struct NewRequest {
  RequestId id = 0;
  std::vector<int32_t> prompt;
  SamplingConfig sampling;
};

struct TableUpdate {
  RequestId id = 0;
  int64_t start = 0;
  std::vector<int32_t> block_ids;
};

struct Chunk {
  RequestId id = 0;
  int64_t start = 0;
  int64_t num_tokens = 0;
};

struct Plan {
  std::vector<RequestId> finished;
  std::vector<NewRequest> new_requests;
  std::vector<TableUpdate> tables;
  std::vector<Chunk> chunks;
};

class RequestTable {
 public:
  RequestTable(const ModelConfig& config, const Limits& limits) : vocab_size_(config.vocab_size), limits_(limits) {}

  // Check the whole plan, then apply finished (unknown ids are passed over), new requests and tables. Throws
  // std::invalid_argument saying what is wrong, with numbers, and then nothing has changed.
  void apply(const Plan& plan);

  Request& at(RequestId id) { return *requests_.at(id); }

 private:
  struct Shadow;
  void check(const Plan& plan) const;
  void check_new(const NewRequest& request) const;
  void check_table(const TableUpdate& update, Shadow& shadow) const;
  void check_chunks(const Plan& plan, const std::unordered_map<RequestId, Shadow>& shadows) const;

  int vocab_size_;
  Limits limits_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
};

}  // namespace hasten
