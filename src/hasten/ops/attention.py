"""Attention over one head's packed K and V blocks (layout: kv_store.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hasten import _kernels
from hasten.kv_store import BLOCK_SIZE
from hasten.ops.kernels import AUTO

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Blocks = npt.NDArray[np.uint8]  # [num_blocks, bytes of one head's K or V]

SPAN = 256  # keys in a span


@dataclass(frozen=True, slots=True)
class Partial:
    """Attention before division: of each row the largest score, Σ e^(score − largest), and the same sum over V's rows."""

    m: Float32  # [rows]
    l: Float32  # noqa: E741 (the papers' letter) [rows]
    acc: Float32  # [rows, head_dim]


def write_kv(kv_format: str, x: Float32, position: int, blocks: Blocks, *, is_value: bool, isa: str = AUTO) -> None:
    """Store one token's K or V of one head, [head_dim], at `position` of the blocks."""
    _kernels.write_kv(kv_format, is_value, x, position, blocks, isa)


def attend_span(
    kv_format: str, q: Float32, num_keys: Int32, k_blocks: Blocks, v_blocks: Blocks, *, scale: float, isa: str = AUTO
) -> Partial:
    """Query rows of one KV head against one span of at most 256 keys.

    Args:
        q: [rows, head_dim], rotated as K was.
        num_keys: [rows] keys each row sees, from the span's first.
        k_blocks, v_blocks: the span's blocks; slots past a row's keys may hold anything.
        scale: factor on q·k, usually head_dim ** -0.5.
    Raises: ValueError when the shapes do not fit.
    """
    rows, head_dim = q.shape
    out = Partial(np.empty(rows, np.float32), np.empty(rows, np.float32), np.empty((rows, head_dim), np.float32))
    _kernels.attend_span(kv_format, q, num_keys, k_blocks, v_blocks, scale, out.m, out.l, out.acc, isa)
    return out


def attend(
    kv_format: str, q: Float32, num_keys: int, k_blocks: Blocks, v_blocks: Blocks, *, scale: float, isa: str = AUTO
) -> Float32:
    """One query row, [head_dim], against its first `num_keys` >= 1 keys, span by span. Returns [head_dim]."""
    partials = []
    per_span = SPAN // BLOCK_SIZE
    for start in range(0, num_keys, SPAN):
        keys = np.array([min(SPAN, num_keys - start)], np.int32)
        blocks = slice(start // BLOCK_SIZE, start // BLOCK_SIZE + per_span)
        partials.append(attend_span(kv_format, q[None, :], keys, k_blocks[blocks], v_blocks[blocks], scale=scale, isa=isa))
    m, l, acc = (np.concatenate([getattr(p, name) for p in partials]) for name in ("m", "l", "acc"))  # noqa: E741
    _kernels.attend_merge(m, l, acc, isa)
    out = np.empty_like(q)
    _kernels.attend_finish(acc[0], float(l[0]), out, isa)
    return out
