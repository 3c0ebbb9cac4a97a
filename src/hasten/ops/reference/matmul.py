"""NumPy twins of quantization and matrix products: the integers and scales of the kernels, in the plainest form."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WIDE_MAX = 32258  # 254 · 127: value and residual planes of int8 both fit


def k_block_for(k: int) -> int:
    """Activations under one scale: the largest of 256, 192, 128, 64 that divides k, else 32."""
    return next((block for block in (256, 192, 128, 64) if k % block == 0), 32)


def quantize_rows(x: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Integers up to ±32258 and the scale of each K-block. x: [rows, k] finite; returns [rows, k], [rows, k / k_block]."""
    rows, k = x.shape
    blocks = x.reshape(rows, -1, k_block_for(k))
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    zero = largest < np.float32(1e-30)
    factor = np.where(zero, np.float32(0), np.float32(WIDE_MAX) / np.where(zero, np.float32(1), largest))
    wide = np.clip(np.rint(blocks * factor), -WIDE_MAX, WIDE_MAX).astype(np.int32)
    scales = np.where(zero, np.float32(0), largest / np.float32(WIDE_MAX))
    return wide.reshape(rows, k), scales[..., 0]


def matmul(x: npt.NDArray[np.floating], weights: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """x: [rows, k], weights: [n, k] dequantized; returns [rows, n]."""
    return x @ weights.T
