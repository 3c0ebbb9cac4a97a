"""Matrix products with packed weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hasten import _kernels
from hasten.ops.kernels import AUTO

Float32 = npt.NDArray[np.float32]
Range = tuple[int, int]  # [begin, end)

PANEL = 16  # outputs in a panel


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """A weight matrix [n, k] in the kernels' panel order; the file's bytes are no longer needed."""

    format: str
    native: _kernels.PackedWeights

    @property
    def n(self) -> int:
        return int(self.native.n)

    @property
    def k(self) -> int:
        return int(self.native.k)

    @property
    def k_block(self) -> int:
        """Activations under one scale."""
        return int(self.native.k_block)

    @property
    def num_panels(self) -> int:
        return int(self.native.num_panels)

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return int(self.native.nbytes)

    @property
    def is_quantized(self) -> bool:
        return bool(self.native.is_quantized)


def pack(weight_format: str, rows: npt.NDArray[np.uint8], k: int) -> PackedWeights:
    """Pack a matrix of k inputs.

    Args:
        weight_format: "f32", "f16", "bf16", "q8_0", "q4_0" or "q4_1".
        rows: [n, bytes per row] as GGUF stores them.
    Raises: ValueError for an unknown format, a k the format cannot hold, or rows too short for it.
    """
    return PackedWeights(weight_format, _kernels.pack(weight_format, rows, k))


def quantize_rows(x: Float32, *, isa: str = AUTO) -> _kernels.QuantizedRows:
    """Activations [rows, k] as integers up to ±32258 and a scale per K-block, in the order the table's matmul reads."""
    return _kernels.quantize_rows(x, isa)


def matmul(
    weights: PackedWeights,
    x: Float32 | _kernels.QuantizedRows,
    *,
    isa: str = AUTO,
    out: Float32 | None = None,
    panels: Range | None = None,
    rows: Range | None = None,
) -> Float32:
    """x · weightsᵀ.

    Args:
        x: [rows, k] float32, or (quantized weights only) what `quantize_rows` returned; then `isa` is that of x.
        out: [rows, n] float32, written in place; new when absent.
        panels, rows: compute only these panels of 16 outputs and these rows; the rest of `out` is left alone.
    Returns: [rows, n] float32.
    Raises: ValueError when the shapes do not fit.
    """
    if weights.is_quantized and isinstance(x, np.ndarray):
        x = quantize_rows(x, isa=isa)
    num_rows = len(x) if isinstance(x, np.ndarray) else int(x.num_rows)
    if out is None:
        out = np.zeros((num_rows, weights.n), np.float32)
    panels = panels or (0, weights.num_panels)
    rows = rows or (0, num_rows)
    if isinstance(x, np.ndarray):
        _kernels.matmul_dense(weights.native, x, out, panels, rows, isa)
    else:
        _kernels.matmul_quantized(weights.native, x, out, panels, rows)
    return out


def unpack_row(weights: PackedWeights, row: int, *, isa: str = AUTO) -> Float32:
    """Row `row` as float32, [k]: the look-up of an embedding."""
    out = np.empty(weights.k, np.float32)
    _kernels.unpack_row(weights.native, row, out, isa)
    return out
