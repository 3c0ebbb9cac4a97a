"""GGUF Q4_1: 32 weights as float16 scale d and minimum m, and 16 bytes of 4-bit codes; weight = d · code + m."""

from __future__ import annotations

import numpy as np

from hasten.quant.format import (
    Bytes,
    Floats,
    WeightFormat,
    nibbles,
    pack_nibbles,
    reciprocal,
    scales_to_bytes,
    scales_to_float32,
)


def _unpack(blocks: Bytes) -> Floats:
    # d · code is exact in float32 (11 + 4 bits), so one rounding happens here, as with fma
    codes = nibbles(blocks[:, 4:]).astype(np.float32)
    return scales_to_float32(blocks[:, :2]) * codes + scales_to_float32(blocks[:, 2:4])


def _pack(weights: Floats) -> Bytes:
    low = weights.min(axis=1, keepdims=True)
    scales = (weights.max(axis=1, keepdims=True) - low) / np.float32(15)
    codes = np.clip(np.floor((weights - low) * reciprocal(scales) + np.float32(0.5)), 0, 15).astype(np.uint8)
    return np.concatenate([scales_to_bytes(scales), scales_to_bytes(low), pack_nibbles(codes)], axis=1)


Q4_1 = WeightFormat("q4_1", block_size=32, block_bytes=20, unpack_blocks=_unpack, pack_blocks=_pack)
