"""GGUF Q4_0: 32 weights as one float16 scale d and 16 bytes of unsigned 4-bit codes; weight = d · (code − 8)."""

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
    codes = nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)
    return scales_to_float32(blocks[:, :2]) * codes


def _pack(weights: Floats) -> Bytes:
    # the weight of largest magnitude becomes code 0 (−8), so the scale carries its sign
    largest = np.take_along_axis(weights, np.abs(weights).argmax(axis=1, keepdims=True), axis=1)
    scales = largest / np.float32(-8)
    codes = np.clip(np.floor(weights * reciprocal(scales) + np.float32(8.5)), 0, 15).astype(np.uint8)
    return np.concatenate([scales_to_bytes(scales), pack_nibbles(codes)], axis=1)


Q4_0 = WeightFormat("q4_0", block_size=32, block_bytes=18, unpack_blocks=_unpack, pack_blocks=_pack)
