// What csrc/model is built from: plain structs, filled by hasten.engine.native.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "model/kv_layout.h"

namespace hasten {

constexpr int kMaxGroupSize = 256;  // query heads that share one KV head

enum class RopeScaling : int { kDefault = 0, kLinear = 1, kLlama3 = 2 };

// As hasten.models.spec.RopeSpec.
struct RopeConfig {
  int dim = 0;
  double base = 10000.0;
  bool interleaved = false;
  RopeScaling scaling = RopeScaling::kDefault;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_max_position = 8192.0;
  std::vector<double> freq_factors;  // [dim / 2] or empty
};

// As hasten.models.spec.ModelSpec.
struct ModelConfig {
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  float norm_eps = 0.0F;
  bool tied_head = false;
  RopeConfig rope;

  int q_size() const { return num_q_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
  int group_size() const { return num_q_heads / num_kv_heads; }  // query heads that share one KV head
};

// How much of everything: fixed at start.
struct Limits {
  int num_blocks = 0;
  int max_model_len = 0;
  int max_num_batched_tokens = 0;
  int max_num_seqs = 0;
  KvFormat kv_format = KvFormat::kBF16;
};

inline KvLayout kv_layout(const ModelConfig& model, KvFormat format) {
  return {format, model.num_layers, model.num_kv_heads, model.head_dim};
}

// Throws std::invalid_argument naming the first number csrc/model cannot run with.
void check_config(const ModelConfig& model, const Limits& limits);

}  // namespace hasten
