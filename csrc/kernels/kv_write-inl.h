// One token's K or V of one head into its packed place (layout: src/hasten/kv_store.py).
#pragma once

#include <cstring>

#include "kernels/abs_max-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/kernel_table.h"

namespace hasten {
namespace {

// 32-bit words of 16 tokens (K) or 16 dims (V) make 64 bytes; a word holds 1 float32, 2 bf16 or 4 int8 values of the other
// axis.
constexpr int kWordRow = 64;
constexpr int values_per_word(KvFormat format) { return format == KvFormat::kF32 ? 1 : format == KvFormat::kBF16 ? 2 : 4; }

inline int k_offset(KvFormat format, int head_dim, int slot, int d) {
  const int per = values_per_word(format);
  return ((slot / 16) * (head_dim / per) + d / per) * kWordRow + (slot % 16) * 4 + (d % per) * (4 / per);
}
inline int v_offset(KvFormat format, int slot, int d) {
  const int per = values_per_word(format);
  return ((d / 16) * (kKvBlock / per) + slot / per) * kWordRow + (d % 16) * 4 + (slot % per) * (4 / per);
}

// Nearest even; NaN stays NaN, as a quiet one.
inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <typename Offset>
void write_values(KvFormat format, const float* x, int head_dim, int slot, uint8_t* head_base, Offset offset) {
  if (format == KvFormat::kF32) {
    for (int d = 0; d < head_dim; ++d) std::memcpy(head_base + offset(d), x + d, sizeof(float));
    return;
  }
  if (format == KvFormat::kBF16) {
    for (int d = 0; d < head_dim; ++d) {
      const uint16_t value = to_bf16(x[d]);
      std::memcpy(head_base + offset(d), &value, sizeof(value));
    }
    return;
  }
  const float largest = abs_max(x, head_dim);
  // Below 1e-30 the scale would near the subnormals, which compute threads flush: the token is stored as zeros.
  const float scale = largest < 1e-30f ? 0.0f : largest / 127.0f;
  std::memcpy(head_base + kKvBlock * head_dim + slot * 4, &scale, sizeof(scale));
  const bool usable = scale > 0.0f && largest < __builtin_inff();  // an infinite or NaN scale speaks for itself
  for (int d = 0; d < head_dim; ++d) {
    const float rounded = usable ? (x[d] / scale + kRoundMagic) - kRoundMagic : 0.0f;
    head_base[offset(d)] = static_cast<uint8_t>(static_cast<int8_t>(rounded));
  }
}

void write_k(KvFormat format, const float* k, int head_dim, int slot, uint8_t* head_base) {
  write_values(format, k, head_dim, slot, head_base,
               [format, head_dim, slot](int d) { return k_offset(format, head_dim, slot, d); });
}

void write_v(KvFormat format, const float* v, int head_dim, int slot, uint8_t* head_base) {
  write_values(format, v, head_dim, slot, head_base, [format, slot](int d) { return v_offset(format, slot, d); });
}

}  // namespace
}  // namespace hasten
