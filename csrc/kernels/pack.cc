#include "kernels/pack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace hasten {
namespace {

struct FormatInfo {
  const char* name;
  size_t source_group_bytes;  // quantized: bytes of 32 weights in the file; float: bytes of one weight
  size_t code_bits;           // per weight, packed
  bool has_scales;
  bool has_mins;
};

const FormatInfo& info(WeightFormat format) {
  static constexpr FormatInfo kInfo[] = {
      {"f32", 4, 32, false, false}, {"f16", 2, 16, false, false}, {"bf16", 2, 16, false, false},
      {"q8_0", 34, 8, true, false}, {"q4_0", 18, 4, true, false}, {"q4_1", 20, 4, true, true},
  };
  return kInfo[static_cast<int>(format)];
}

size_t align_up(size_t bytes) { return (bytes + kPackAlign - 1) / kPackAlign * kPackAlign; }

size_t padded_rows(int n) { return (static_cast<size_t>(n) + kPanel - 1) / kPanel * kPanel; }

uint32_t load_four(const uint8_t* p) {
  uint32_t four;
  std::memcpy(&four, p, sizeof(four));
  return four;
}

// One group of 32 weights of one row into its panel, four bytes at a time; `lane` is the row within the panel.
void store_four(uint8_t* group, int step, int lane, uint32_t four) {
  std::memcpy(group + (step * kPanel + lane) * 4, &four, sizeof(four));
}

void place_q8(const uint8_t* codes, int lane, uint8_t* group) {
  for (int step = 0; step < kGroup / 4; ++step) {
    store_four(group, step, lane, load_four(codes + step * 4) ^ 0x80808080u);  // int8 c to unsigned c + 128
  }
}

// File order: byte j holds weight j (low) and j + 16 (high). Ours: per 8 weights, byte j holds weights j and j + 4.
void place_q4(const uint8_t* nibbles, int lane, uint8_t* group) {
  constexpr uint32_t kLow = 0x0f0f0f0fu;
  for (int half = 0; half < 2; ++half) {
    const uint32_t first = load_four(nibbles + half * 8), second = load_four(nibbles + half * 8 + 4);
    store_four(group, half, lane, (first & kLow) | (second & kLow) << 4);
    store_four(group, 2 + half, lane, (first >> 4 & kLow) | (second & ~kLow));
  }
}

struct Streams {
  uint8_t* codes;
  uint16_t* scales;
  uint16_t* mins;
};

void place_float_row(size_t weight_bytes, const uint8_t* row, int k, int lane, uint8_t* codes) {
  for (int i = 0; i < k; ++i) {
    std::memcpy(codes + (static_cast<size_t>(i) * kPanel + static_cast<size_t>(lane)) * weight_bytes,
                row + static_cast<size_t>(i) * weight_bytes, weight_bytes);
  }
}

// Group by group, so that what is written together lies together.
void place_quantized_rows(WeightFormat format, const uint8_t* rows, size_t row_bytes, int k, int lanes, const Streams& out) {
  const FormatInfo& f = info(format);
  const size_t group_bytes = kGroup * kPanel * f.code_bits / 8;
  for (int g = 0; g < k / kGroup; ++g) {
    uint8_t* group = out.codes + static_cast<size_t>(g) * group_bytes;
    for (int lane = 0; lane < lanes; ++lane) {
      const uint8_t* source = rows + static_cast<size_t>(lane) * row_bytes + static_cast<size_t>(g) * f.source_group_bytes;
      std::memcpy(out.scales + g * kPanel + lane, source, 2);
      if (f.has_mins) std::memcpy(out.mins + g * kPanel + lane, source + 2, 2);
      const uint8_t* codes = source + (f.has_mins ? 4 : 2);
      format == WeightFormat::kQ8_0 ? place_q8(codes, lane, group) : place_q4(codes, lane, group);
    }
  }
}

}  // namespace

int k_block_for(int k) {
  for (int block : {256, 192, 128, 64}) {
    if (k % block == 0) return block;
  }
  return kGroup;
}

PackedOffsets packed_offsets(WeightFormat format, int n, int k) {
  const FormatInfo& f = info(format);
  const size_t weights = padded_rows(n) * static_cast<size_t>(k);
  const size_t stream = align_up(weights / kGroup * 2);
  PackedOffsets at;
  at.scales = align_up(weights * f.code_bits / 8);
  at.mins = at.scales + (f.has_scales ? stream : 0);
  at.total = at.mins + (f.has_mins ? stream : 0);
  return at;
}

size_t packed_bytes(WeightFormat format, int n, int k) { return packed_offsets(format, n, k).total; }

size_t source_row_bytes(WeightFormat format, int k) {
  const FormatInfo& f = info(format);
  return f.source_group_bytes * static_cast<size_t>(f.has_scales ? k / kGroup : k);
}

void check_packable(WeightFormat format, int n, int k, size_t row_bytes) {
  const FormatInfo& f = info(format);
  const std::string shape = std::string(f.name) + " matrix [" + std::to_string(n) + ", " + std::to_string(k) + "]";
  if (n <= 0 || k <= 0) throw std::invalid_argument(shape + " has no weights");
  if (f.has_scales && k % kGroup != 0) {
    throw std::invalid_argument(shape + ": the row length must be a multiple of " + std::to_string(kGroup));
  }
  const size_t needed = source_row_bytes(format, k);
  if (row_bytes < needed) {
    throw std::invalid_argument(shape + " needs " + std::to_string(needed) + " bytes a row, got " + std::to_string(row_bytes));
  }
}

PackedMatrix packed_view(WeightFormat format, int n, int k, const void* dest) {
  const FormatInfo& f = info(format);
  const PackedOffsets at = packed_offsets(format, n, k);
  const auto* base = static_cast<const uint8_t*>(dest);
  PackedMatrix w;
  w.format = format;
  w.n = n;
  w.k = k;
  w.k_block = k_block_for(k);
  w.codes = base;
  if (f.has_scales) w.scales = reinterpret_cast<const uint16_t*>(base + at.scales);
  if (f.has_mins) w.mins = reinterpret_cast<const uint16_t*>(base + at.mins);
  return w;
}

void pack_panels(WeightFormat format, int n, int k, const uint8_t* rows, size_t row_bytes, int panel_begin, int panel_end,
                 void* dest) {
  const FormatInfo& f = info(format);
  const PackedOffsets at = packed_offsets(format, n, k);
  auto* base = static_cast<uint8_t*>(dest);
  const size_t panel_code_bytes = static_cast<size_t>(kPanel) * static_cast<size_t>(k) * f.code_bits / 8;
  const size_t panel_groups = static_cast<size_t>(kPanel) * static_cast<size_t>(k) / kGroup;
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    const auto p = static_cast<size_t>(panel);
    const Streams out{base + p * panel_code_bytes, reinterpret_cast<uint16_t*>(base + at.scales) + p * panel_groups,
                      reinterpret_cast<uint16_t*>(base + at.mins) + p * panel_groups};
    const int lanes = std::min(kPanel, n - panel * kPanel);
    if (lanes < kPanel) {  // rows past n: code 0 under scale 0 (and min 0), so every product is zero
      std::memset(out.codes, 0, panel_code_bytes);
      if (f.has_scales) std::memset(out.scales, 0, panel_groups * 2);
      if (f.has_mins) std::memset(out.mins, 0, panel_groups * 2);
    }
    const uint8_t* first_row = rows + p * kPanel * row_bytes;
    if (f.has_scales) {
      place_quantized_rows(format, first_row, row_bytes, k, lanes, out);
    } else {
      for (int lane = 0; lane < lanes; ++lane) {
        place_float_row(f.source_group_bytes, first_row + static_cast<size_t>(lane) * row_bytes, k, lane, out.codes);
      }
    }
  }
}

PackedMatrix pack(WeightFormat format, int n, int k, const uint8_t* rows, size_t row_bytes, void* dest) {
  check_packable(format, n, k, row_bytes);
  const PackedMatrix w = packed_view(format, n, k, dest);
  pack_panels(format, n, k, rows, row_bytes, 0, w.num_panels(), dest);
  return w;
}

}  // namespace hasten
