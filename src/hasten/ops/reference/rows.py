"""NumPy twins of the row kernels: what they compute, in the plainest form."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating]


def rms_norm(x: Float, weight: Float, *, eps: float) -> Float:
    """x: [..., n], weight: [n]; returns [..., n]."""
    out: Float = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return out


def silu_mul(gate: Float, up: Float) -> Float:
    """gate · sigmoid(gate) · up."""
    return gate / (1.0 + np.exp(-gate)) * up


def rope(head: Float, cos: Float, sin: Float, *, interleaved: bool) -> Float:
    """Rotate the first 2·len(cos) values of the last axis; pairs (2i, 2i+1) if interleaved, else (i, i + dim/2)."""
    dim = 2 * len(cos)
    out = head.copy()
    first, second = (slice(0, dim, 2), slice(1, dim, 2)) if interleaved else (slice(0, dim // 2), slice(dim // 2, dim))
    a, b = head[..., first], head[..., second]
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def hadamard(x: Float) -> Float:
    """Normalised Hadamard transform of the last axis in blocks of the largest power of two that divides it."""
    n = x.shape[-1]
    size = n & -n
    matrix = np.ones((1, 1), dtype=x.dtype)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    blocks: Float = x.reshape(*x.shape[:-1], n // size, size) @ matrix / np.sqrt(size)
    return blocks.reshape(x.shape).astype(x.dtype)


def log_sum_exp(x: Float) -> float:
    """ln Σ e^x of [n]."""
    largest = float(np.max(x))
    return largest + float(np.log(np.sum(np.exp(x - largest))))
