// The K/V arrays: one owner. Block `id` is one contiguous run of bytes; inside it, kv_layout.h.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/memory.h"

namespace hasten {

class KvMemory {
 public:
  // Touched lazily: memory is taken from the system when a block is first written. Throws OutOfMemory.
  KvMemory(const KvLayout& layout, int num_blocks)
      : layout_(layout), memory_(static_cast<size_t>(layout.block_bytes()) * static_cast<size_t>(num_blocks), "the KV cache") {}

  const KvLayout& layout() const { return layout_; }
  uint8_t* data() const { return memory_.data(); }
  size_t size() const { return memory_.size(); }

  uint8_t* head(int32_t block, int layer, bool is_value, int kv_head) const {
    return memory_.data() + block * layout_.block_bytes() + layout_.offset(layer, is_value, kv_head);
  }

 private:
  KvLayout layout_;
  HugeBuffer memory_;
};

}  // namespace hasten
