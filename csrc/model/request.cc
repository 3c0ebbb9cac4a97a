#include "model/request.h"

#include <stdexcept>
#include <unordered_set>

namespace hasten {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string text(int64_t value) { return std::to_string(value); }

std::string name(RequestId id) { return "request " + text(id); }

}  // namespace

void Request::append(int32_t token) {
  tokens.push_back(token);
  if (sampling.has_penalties()) ++uses[token].num_output;
}

// What a request will look like once the delta is applied: sizes only, so that checking copies no tokens.
struct RequestTable::Shadow {
  int64_t num_tokens = 0;
  int64_t num_blocks = 0;
};

void RequestTable::check_new(const NewRequest& request) const {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) refuse(name(request.id) + " has an empty prompt");
  if (length > limits_.max_model_len) {
    refuse(name(request.id) + " has " + text(length) + " prompt tokens, max_model_len is " + text(limits_.max_model_len));
  }
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= vocab_size_) {
      refuse("token id " + text(token) + " of " + name(request.id) + " is outside the vocabulary of " + text(vocab_size_));
    }
  }
}

void RequestTable::check_table(const TableUpdate& update, Shadow& shadow) const {
  if (update.start < 0 || update.start > shadow.num_blocks) {
    refuse("the block table of " + name(update.id) + " has " + text(shadow.num_blocks) +
           " entries, an update cannot start at " + text(update.start));
  }
  for (const int32_t block : update.block_ids) {
    if (block < 0 || block >= limits_.num_blocks) {
      refuse("block id " + text(block) + " of " + name(update.id) + " is outside the pool of " + text(limits_.num_blocks));
    }
  }
  shadow.num_blocks = update.start + static_cast<int64_t>(update.block_ids.size());
}

void RequestTable::check_chunks(const Plan& plan, const std::unordered_map<RequestId, Shadow>& shadows) const {
  std::unordered_set<RequestId> seen;
  int64_t total = 0;
  for (const Chunk& chunk : plan.chunks) {
    const auto shadow = shadows.find(chunk.id);
    if (shadow == shadows.end()) refuse(name(chunk.id) + " is not known");
    if (!seen.insert(chunk.id).second) refuse(name(chunk.id) + " has two chunks in one step");
    if (chunk.start < 0 || chunk.num_tokens < 1) {
      refuse("a chunk of " + name(chunk.id) + " starts at " + text(chunk.start) + " and has " + text(chunk.num_tokens) +
             " tokens");
    }
    const int64_t end = chunk.start + chunk.num_tokens;
    const auto& [num_tokens, num_blocks] = shadow->second;
    if (end > limits_.max_model_len) {
      refuse("a chunk of " + name(chunk.id) + " ends at token " + text(end) + ", max_model_len is " +
             text(limits_.max_model_len));
    }
    if (end > num_tokens) {
      refuse("a chunk of " + name(chunk.id) + " ends at token " + text(end) + ", only " + text(num_tokens) + " are known");
    }
    if (end > num_blocks * kKvBlock) {
      refuse("a chunk of " + name(chunk.id) + " ends at token " + text(end) + ", its block table of " + text(num_blocks) +
             " entries holds " + text(num_blocks * kKvBlock));
    }
    total += chunk.num_tokens;
  }
  if (total > limits_.max_num_batched_tokens) {
    refuse("the step has " + text(total) + " tokens, max_num_batched_tokens is " + text(limits_.max_num_batched_tokens));
  }
  if (static_cast<int64_t>(plan.chunks.size()) > limits_.max_num_seqs) {
    refuse("the step has " + text(static_cast<int64_t>(plan.chunks.size())) + " chunks, max_num_seqs is " +
           text(limits_.max_num_seqs));
  }
}

void RequestTable::check(const Plan& plan) const {
  std::unordered_map<RequestId, Shadow> shadows;
  shadows.reserve(requests_.size() + plan.new_requests.size());
  for (const auto& [id, request] : requests_) {
    shadows[id] = {static_cast<int64_t>(request->tokens.size()), static_cast<int64_t>(request->block_table.size())};
  }
  for (const RequestId id : plan.finished) shadows.erase(id);
  for (const NewRequest& request : plan.new_requests) {
    check_new(request);
    if (!shadows.emplace(request.id, Shadow{static_cast<int64_t>(request.prompt.size()), 0}).second) {
      refuse(name(request.id) + " is already known");
    }
  }
  for (const TableUpdate& update : plan.tables) {
    const auto shadow = shadows.find(update.id);
    if (shadow == shadows.end()) refuse("block table of " + name(update.id) + ", which is not known");
    check_table(update, shadow->second);
  }
  check_chunks(plan, shadows);
}

void RequestTable::apply(const Plan& plan) {
  check(plan);
  for (const RequestId id : plan.finished) requests_.erase(id);
  for (const NewRequest& fresh : plan.new_requests) {
    auto request = std::make_unique<Request>();
    request->prompt_len = static_cast<int>(fresh.prompt.size());
    request->tokens = fresh.prompt;
    request->sampling = fresh.sampling;
    if (fresh.sampling.has_penalties()) {
      for (const int32_t token : fresh.prompt) request->uses.try_emplace(token);
    }
    requests_[fresh.id] = std::move(request);
  }
  for (const TableUpdate& update : plan.tables) {
    std::vector<int32_t>& table = requests_.at(update.id)->block_table;
    table.resize(static_cast<size_t>(update.start));
    table.insert(table.end(), update.block_ids.begin(), update.block_ids.end());
  }
}

}  // namespace hasten
