"""GGUF Q8_0: 32 weights as one float16 scale d and 32 int8 codes; weight = d · code."""

from __future__ import annotations

import numpy as np

from hasten.quant.format import Bytes, Floats, WeightFormat, reciprocal, scales_to_bytes, scales_to_float32


def _unpack(blocks: Bytes) -> Floats:
    codes = np.ascontiguousarray(blocks[:, 2:]).view(np.int8)
    return scales_to_float32(blocks[:, :2]) * codes.astype(np.float32)


def _pack(weights: Floats) -> Bytes:
    scales = np.abs(weights).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(weights * reciprocal(scales)).astype(np.int8)
    return np.concatenate([scales_to_bytes(scales), codes.view(np.uint8)], axis=1)


Q8_0 = WeightFormat("q8_0", block_size=32, block_bytes=34, unpack_blocks=_unpack, pack_blocks=_pack)
