#include "model/config.h"

#include <stdexcept>
#include <string>

namespace hasten {
namespace {

void require(bool holds, const char* name, int64_t value, const char* rule) {
  if (!holds) throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + ", it must be " + rule);
}

void require_positive(const char* name, int64_t value) { require(value >= 1, name, value, "at least 1"); }

}  // namespace

void check_config(const ModelConfig& model, const Limits& limits) {
  require_positive("num_layers", model.num_layers);
  require_positive("hidden_size", model.hidden_size);
  require_positive("intermediate_size", model.intermediate_size);
  require_positive("num_q_heads", model.num_q_heads);
  require_positive("num_kv_heads", model.num_kv_heads);
  require_positive("vocab_size", model.vocab_size);
  require(model.num_q_heads % model.num_kv_heads == 0, "num_q_heads", model.num_q_heads, "a multiple of num_kv_heads");
  require(model.group_size() <= kMaxGroupSize, "num_q_heads / num_kv_heads", model.group_size(), "at most 256");
  require(model.head_dim >= 16 && model.head_dim % 16 == 0 && model.head_dim <= kMaxHeadDim, "head_dim", model.head_dim,
          "a multiple of 16 and at most 256");
  const RopeConfig& rope = model.rope;
  require(rope.dim >= 0 && rope.dim % 2 == 0 && rope.dim <= model.head_dim, "rope.dim", rope.dim, "even and at most head_dim");
  require(rope.freq_factors.empty() || static_cast<int>(rope.freq_factors.size()) == rope.dim / 2, "rope.freq_factors",
          static_cast<int64_t>(rope.freq_factors.size()), "as long as rope.dim / 2, or empty");
  require_positive("num_blocks", limits.num_blocks);
  require_positive("max_model_len", limits.max_model_len);
  require_positive("max_num_batched_tokens", limits.max_num_batched_tokens);
  require_positive("max_num_seqs", limits.max_num_seqs);
}

}  // namespace hasten
