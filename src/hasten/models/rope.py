"""Frequencies of rotary position embeddings and the rotation, in NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hasten.models.spec import RopeSpec

Floats = npt.NDArray[np.float32]


def rope_frequencies(rope: RopeSpec) -> npt.NDArray[np.float64]:
    """Radians per position of each rotated pair: [dim / 2] float64.

    Source: Su et al. 2021, arXiv:2104.09864; llama3 scaling as in the Llama 3.1 reference code: waves longer than
    original_max_position / low_freq_factor are slowed by `factor`, waves shorter than original_max_position /
    high_freq_factor are kept, those between are blended.
    """
    frequencies = rope.base ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    if rope.scaling == "linear":
        frequencies = frequencies / rope.factor
    elif rope.scaling == "llama3":
        turns = rope.original_max_position * frequencies / (2 * np.pi)  # full turns over the original context
        kept = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)
        frequencies = kept * frequencies + (1 - kept) * frequencies / rope.factor
    if rope.freq_factors:
        frequencies = frequencies / np.asarray(rope.freq_factors, dtype=np.float64)
    return frequencies


def rotate(x: Floats, positions: npt.NDArray[np.int64], rope: RopeSpec) -> Floats:
    """Rotate the first `rope.dim` dimensions of each head by its token's position.

    Args:
        x: [num_tokens, num_heads, head_dim] float32.
        positions: [num_tokens] int64.
    Returns: [num_tokens, num_heads, head_dim] float32, new.
    """
    angles = positions[:, None] * rope_frequencies(rope)  # float64: float32 loses the phase at long positions
    cos, sin = np.cos(angles).astype(np.float32)[:, None], np.sin(angles).astype(np.float32)[:, None]
    half = rope.dim // 2
    first, second = (
        (slice(0, rope.dim, 2), slice(1, rope.dim, 2)) if rope.interleaved else (slice(0, half), slice(half, rope.dim))
    )
    rotated = x.copy()
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., second] * cos + x[..., first] * sin
    return rotated
