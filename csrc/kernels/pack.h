// From rows as GGUF stores them to panels of 16 outputs (layout: kernel_table.h). Plain C++, the same bytes for every table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"

namespace hasten {

constexpr size_t kPackAlign = 64;  // codes, scales and mins each start at a multiple of this within `dest`

// Where the three streams lie inside `dest`: codes at 0. An absent stream has the offset of the end.
struct PackedOffsets {
  size_t scales = 0;
  size_t mins = 0;
  size_t total = 0;  // a multiple of kPackAlign
};

PackedOffsets packed_offsets(WeightFormat format, int n, int k);

// Bytes `dest` must have; dest must be aligned to kPackAlign.
size_t packed_bytes(WeightFormat format, int n, int k);

// Bytes of one row as GGUF stores it: Q4_0 (f16 d, 16 bytes) per 32, Q4_1 (f16 d, f16 m, 16 bytes), Q8_0 (f16 d, 32 int8).
size_t source_row_bytes(WeightFormat format, int k);

// Throws std::invalid_argument when n, k or the row stride cannot be packed (k not a multiple of 32 for quantized formats, …).
void check_packable(WeightFormat format, int n, int k, size_t row_bytes);

// The view of `dest`, whether or not its panels are filled yet.
PackedMatrix packed_view(WeightFormat format, int n, int k, const void* dest);

// Fill panels [panel_begin, panel_end) of `dest`; disjoint ranges may be filled by several threads at once.
//   rows: row r of the matrix starts at rows + r * row_bytes.
void pack_panels(WeightFormat format, int n, int k, const uint8_t* rows, size_t row_bytes, int panel_begin, int panel_end,
                 void* dest);

// All panels: check_packable, pack_panels, packed_view.
PackedMatrix pack(WeightFormat format, int n, int k, const uint8_t* rows, size_t row_bytes, void* dest);

}  // namespace hasten
