// The model's weights, packed for the kernels in the order a step visits them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/team.h"
#include "kernels/kernel_table.h"
#include "model/config.h"
#include "model/memory.h"

namespace hasten {

// A tensor as the file stores it; `rows` must stay readable until Weights is constructed.
struct TensorSource {
  std::string name;  // as in hasten.models.spec
  WeightFormat format = WeightFormat::kF32;
  int n = 0;  // outputs; 1 for norms, which are always F32
  int k = 0;  // inputs
  const uint8_t* rows = nullptr;
  size_t row_bytes = 0;
};

struct LayerWeights {
  const float* attn_norm = nullptr;
  PackedMatrix q, k, v, o;
  const float* ffn_norm = nullptr;
  PackedMatrix gate, up, down;
};

class Weights {
 public:
  // Packs on the team. Throws std::invalid_argument for a missing tensor or a wrong shape, OutOfMemory.
  Weights(const ModelConfig& config, const std::vector<TensorSource>& tensors, Team& team);

  // What the constructor will allocate.
  static int64_t bytes(const std::vector<TensorSource>& tensors);

  const LayerWeights& layer(int i) const { return layers_[static_cast<size_t>(i)]; }
  const PackedMatrix& embed() const { return embed_; }
  const PackedMatrix& head() const { return head_; }
  const float* final_norm() const { return final_norm_; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
  HugeBuffer memory_;
  std::vector<LayerWeights> layers_;
  PackedMatrix embed_, head_;
  const float* final_norm_ = nullptr;
};

}  // namespace hasten
