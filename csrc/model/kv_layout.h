// Sizes and offsets of a KV block: the same numbers as src/hasten/kv_store.py, whose layout comment decides.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"

namespace hasten {

struct KvLayout {
  KvFormat format = KvFormat::kBF16;
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;

  // Bytes of K (or of V) of one head in one layer of one block.
  int64_t head_bytes() const {
    const int64_t value_bytes = format == KvFormat::kF32 ? 4 : format == KvFormat::kBF16 ? 2 : 1;
    const int64_t scale_bytes = format == KvFormat::kInt8 ? 4 * kKvBlock : 0;
    const int64_t raw = kKvBlock * head_dim * value_bytes + scale_bytes;
    return (raw + 63) / 64 * 64;
  }
  int64_t layer_bytes() const { return 2 * num_kv_heads * head_bytes(); }
  int64_t block_bytes() const { return num_layers * layer_bytes(); }

  int64_t offset(int layer, bool is_value, int kv_head) const {
    return layer * layer_bytes() + ((is_value ? num_kv_heads : 0) + kv_head) * head_bytes();
  }
};

}  // namespace hasten
