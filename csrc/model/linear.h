// A matrix times the rows of a step: how it is cut into pieces of work, and one piece.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.h"
#include "model/scratch.h"

namespace hasten {

inline bool is_quantized(const PackedMatrix& w) { return w.format >= WeightFormat::kQ8_0; }

// The input rows of a phase in both forms; `quantized` is filled only when a matrix of the phase needs it.
struct Activations {
  const float* rows = nullptr;
  int64_t stride = 0;
  QuantizedRows quantized;
};

// Pieces of (some panels) × (a block of rows), numbered so that consecutive pieces share panels: weights are read from
// memory once a step, and a block of rows stays in L2.
struct Tiling {
  int num_panels = 0;
  int panels = 1;  // a piece
  int num_rows = 0;
  int rows = 1;  // a piece
  int row_blocks = 1;

  struct Piece {
    int panel_begin, panel_end, row_begin, row_end;
  };

  int count() const { return (num_panels + panels - 1) / panels * row_blocks; }
  Piece piece(int i) const {
    const int panel = i / row_blocks * panels;
    const int row = i % row_blocks * rows;
    return {panel, std::min(panel + panels, num_panels), row, std::min(row + rows, num_rows)};
  }
};

inline int64_t panel_bytes(const PackedMatrix& w) {
  constexpr int kBitsPerWeight[] = {32, 16, 16, 9, 5, 5};  // with scales, rounded
  return int64_t{kPanel} * w.k * kBitsPerWeight[static_cast<int>(w.format)] / 8;
}

inline Tiling tile(const PackedMatrix& w, int num_rows, int num_threads) {
  constexpr int64_t kPieceBytes = 32 << 10;  // ~2 µs of memory traffic: many times what fetching a piece costs
  constexpr int kPiecesPerThread = 4;        // so that a thread that lost its core costs a piece, not a phase
  Tiling out;
  out.num_panels = w.num_panels();
  out.num_rows = num_rows;
  out.rows = std::min(rows_per_block(w.k), std::max(1, num_rows));
  out.row_blocks = (num_rows + out.rows - 1) / out.rows;
  const int64_t by_bytes = kPieceBytes / std::max<int64_t>(1, panel_bytes(w));
  const int64_t by_count = out.num_panels / (int64_t{kPiecesPerThread} * num_threads);
  out.panels = static_cast<int>(std::clamp<int64_t>(std::min(by_bytes, by_count), 1, kMaxItemPanels));
  return out;
}

// out[row − row_begin][column − 16 · panel_begin], at `out_stride`.
inline void multiply(const KernelTable& kernels, const PackedMatrix& w, const Tiling::Piece& piece, const Activations& x,
                     float* out, int64_t out_stride) {
  // the kernels count rows and columns of the whole result
  float* const origin = out - piece.row_begin * out_stride - int64_t{kPanel} * piece.panel_begin;
  if (is_quantized(w)) {
    kernels.matmul_quantized(w, piece.panel_begin, piece.panel_end, x.quantized, piece.row_begin, piece.row_end, origin,
                             out_stride);
  } else {
    kernels.matmul_dense(w, piece.panel_begin, piece.panel_end, x.rows, x.stride, piece.row_begin, piece.row_end, origin,
                         out_stride);
  }
}

}  // namespace hasten
