"""Weights stored as float32, float16 or bfloat16, little-endian: a block is one weight."""

from __future__ import annotations

import numpy as np

from hasten.quant.format import Bytes, Floats, WeightFormat


def _unpack_f32(blocks: Bytes) -> Floats:
    # a copy: the file's mapping is read only and may not be aligned
    return blocks.view("<f4").astype(np.float32)


def _pack_f32(weights: Floats) -> Bytes:
    return weights.astype("<f4").view(np.uint8)


def _unpack_f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _pack_f16(weights: Floats) -> Bytes:
    return weights.astype("<f2").view(np.uint8)


def _unpack_bf16(blocks: Bytes) -> Floats:
    # bfloat16 is the upper half of a float32
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _pack_bf16(weights: Floats) -> Bytes:
    """Round to nearest even; NaN stays NaN (rounding could carry it into infinity)."""
    bits = weights.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(weights), quiet_nan, rounded).astype("<u2").view(np.uint8)


F32 = WeightFormat("f32", block_size=1, block_bytes=4, unpack_blocks=_unpack_f32, pack_blocks=_pack_f32)
F16 = WeightFormat("f16", block_size=1, block_bytes=2, unpack_blocks=_unpack_f16, pack_blocks=_pack_f16)
BF16 = WeightFormat("bf16", block_size=1, block_bytes=2, unpack_blocks=_unpack_bf16, pack_blocks=_pack_bf16)
