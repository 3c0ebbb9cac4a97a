"""Norm, activation and rotations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hasten import _kernels
from hasten.ops.kernels import AUTO

Float32 = npt.NDArray[np.float32]


def rms_norm(x: Float32, weight: Float32, *, eps: float, isa: str = AUTO) -> Float32:
    """x / sqrt(mean(x²) + eps) · weight, row by row. x: [rows, n], weight: [n]; returns a new [rows, n]."""
    out = np.empty_like(x)
    _kernels.rms_norm(x, weight, out, eps, isa)
    return out


def add_in_place(x: Float32, y: Float32, *, isa: str = AUTO) -> None:
    """x += y; both [n]."""
    _kernels.add(x, y, isa)


def silu_mul(gate: Float32, up: Float32, *, isa: str = AUTO) -> Float32:
    """gate / (1 + e^-gate) · up; all [n]."""
    out = np.empty_like(gate)
    _kernels.silu_mul(gate, up, out, isa)
    return out


def rope(head: Float32, cos: Float32, sin: Float32, *, interleaved: bool, isa: str = AUTO) -> Float32:
    """Rotate the first 2·len(cos) values of one head [head_dim]; pairs (2i, 2i+1) if interleaved, else (i, i + dim/2)."""
    out = head.copy()
    _kernels.rope(out, cos, sin, interleaved, isa)
    return out


def hadamard(x: Float32, *, isa: str = AUTO) -> Float32:
    """Normalised Hadamard transform of [n] in blocks of the largest power of two that divides n."""
    out = x.copy()
    _kernels.hadamard(out, isa)
    return out
