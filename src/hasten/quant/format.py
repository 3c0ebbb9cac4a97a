"""What a weight format is: how many bytes a run of weights takes, and how it becomes float32 and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hasten.errors import ShapeError

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A format in which a file stores weights, as runs ("blocks") of `block_size` weights in `block_bytes` bytes.

    `unpack_blocks` and `pack_blocks` turn [n, block_bytes] uint8 into [n, block_size] float32 and back.
    """

    name: str
    block_size: int  # weights
    block_bytes: int
    unpack_blocks: Callable[[Bytes], Floats]
    pack_blocks: Callable[[Floats], Bytes]

    def row_bytes(self, num_weights: int) -> int:
        """Bytes of a row of `num_weights`. Raises ShapeError if it is not a whole number of blocks."""
        if num_weights % self.block_size:
            raise ShapeError(f"a row of {num_weights} weights is not a multiple of {self.name}'s {self.block_size}")
        return num_weights // self.block_size * self.block_bytes

    def dequantize(self, data: Bytes) -> Floats:
        """[rows, bytes per row] uint8 as [rows, weights per row] float32, at the exact scales of the file."""
        if data.ndim != 2 or data.shape[1] % self.block_bytes:
            raise ShapeError(f"{self.name} data has shape {data.shape}, rows must be multiples of {self.block_bytes} bytes")
        rows, row_bytes = data.shape
        blocks = np.ascontiguousarray(data).reshape(-1, self.block_bytes)
        return self.unpack_blocks(blocks).reshape(rows, row_bytes // self.block_bytes * self.block_size)

    def quantize(self, weights: Floats) -> Bytes:
        """[rows, weights per row] float32 as [rows, bytes per row] uint8."""
        if weights.ndim != 2:
            raise ShapeError(f"weights have shape {weights.shape}, a matrix is needed")
        rows, num_weights = weights.shape
        row_bytes = self.row_bytes(num_weights)
        blocks = np.ascontiguousarray(weights, dtype=np.float32).reshape(-1, self.block_size)
        return self.pack_blocks(blocks).reshape(rows, row_bytes)


def scales_to_float32(data: Bytes) -> Floats:
    """[n, 2] bytes of little-endian float16 as [n, 1] float32."""
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def scales_to_bytes(scales: Floats) -> Bytes:
    """[n, 1] float32 as [n, 2] bytes of little-endian float16."""
    return scales.astype("<f2").view(np.uint8)


def reciprocal(scales: Floats) -> Floats:
    """1 / scale, and 0 where the scale is 0: a block of zeros stays zeros."""
    return np.divide(1.0, scales, out=np.zeros_like(scales), where=scales != 0)


def nibbles(data: Bytes) -> Bytes:
    """[n, 16] bytes as [n, 32] codes: the low halves are weights 0 to 15, the high halves 16 to 31."""
    return np.concatenate([data & 0x0F, data >> 4], axis=1)


def pack_nibbles(codes: Bytes) -> Bytes:
    """[n, 32] codes as [n, 16] bytes; the inverse of `nibbles`."""
    half = codes.shape[1] // 2
    packed: Bytes = np.bitwise_or(codes[:, :half], codes[:, half:] << 4, dtype=np.uint8)
    return packed
