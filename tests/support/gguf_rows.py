"""Random weight rows as GGUF stores them, and their values in float64, decoded here from the bytes alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")
QUANTIZED = ("q8_0", "q4_0", "q4_1")

Bytes = npt.NDArray[np.uint8]


def random_rows(weight_format: str, n: int, k: int, seed: int) -> Bytes:
    """[n, bytes per row]."""
    rng = np.random.default_rng(seed)
    if weight_format == "f32":
        return rng.standard_normal((n, k)).astype(np.float32).view(np.uint8)
    if weight_format == "f16":
        return rng.standard_normal((n, k)).astype(np.float16).view(np.uint8)
    if weight_format == "bf16":
        return np.ascontiguousarray(rng.standard_normal((n, k)).astype(np.float32).view(np.uint16)[:, 1::2]).view(np.uint8)
    codes = rng.integers(0, 256, (n, k // 32, 32 if weight_format == "q8_0" else 16), dtype=np.uint8)
    return quantized_rows(weight_format, codes, rng)


def quantized_rows(weight_format: str, codes: Bytes, rng: np.random.Generator) -> Bytes:
    """codes: [n, groups, 16 or 32] raw bytes; scales (and mins) are drawn. Returns [n, bytes per row]."""
    parts = [rng.uniform(0.002, 0.02, codes.shape[:2])]
    if weight_format == "q4_1":
        parts.append(-rng.uniform(0.02, 0.1, codes.shape[:2]))
    halves = np.stack(parts, axis=-1).astype(np.float16).view(np.uint8)
    return np.ascontiguousarray(np.concatenate([halves, codes], axis=-1).reshape(len(codes), -1))


def values(weight_format: str, rows: Bytes) -> npt.NDArray[np.float64]:
    """[n, k]."""
    if weight_format == "f32":
        return rows.view(np.float32).astype(np.float64)
    if weight_format == "f16":
        return rows.view(np.float16).astype(np.float64)
    if weight_format == "bf16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    header = 4 if weight_format == "q4_1" else 2
    groups = rows.reshape(len(rows), -1, header + (32 if weight_format == "q8_0" else 16))
    halves = np.ascontiguousarray(groups[..., :header]).view(np.float16).astype(np.float64)
    raw = groups[..., header:]
    if weight_format == "q8_0":
        codes = raw.view(np.int8).astype(np.float64)
    else:
        codes = np.concatenate([raw & 15, raw >> 4], axis=-1).astype(np.float64)
    if weight_format == "q4_0":
        codes -= 8.0
    shift = halves[..., 1:2] if weight_format == "q4_1" else 0.0
    return (halves[..., :1] * codes + shift).reshape(len(rows), -1)
