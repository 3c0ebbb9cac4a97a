"""Attention over packed K and V against a dense softmax in float64, on every kernel table this CPU can run."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.kv_store import BLOCK_SIZE, KvLayout
from hasten.ops import kernels
from hasten.ops.attention import attend, attend_span, write_kv
from hasten.ops.reference.attention import attend as reference_attend
from tests.support.compare import assert_close

ISAS = kernels.available_isas()
FORMATS = ("bf16", "int8", "f32")


def empty_blocks(kv_format: str, head_dim: int, num_keys: int, fill: int = 0xFF) -> np.ndarray:
    """0xFF everywhere: NaN as bf16, as float32 and as float32 scale."""
    head_bytes = KvLayout(kv_format, 1, 1, head_dim).head_bytes
    return np.full((-(-num_keys // BLOCK_SIZE), head_bytes), fill, np.uint8)


def rounded(kv_format: str, x: np.ndarray) -> np.ndarray:
    """What the store keeps of [tokens, head_dim], in float64: the rounding kv_store.py states."""
    if kv_format == "int8":
        scale = (np.abs(x).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
        return np.rint(x / scale).astype(np.float64) * scale.astype(np.float64)
    if kv_format == "f32":
        return x.astype(np.float64)
    bits = x.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def store(kv_format: str, k: np.ndarray, v: np.ndarray, isa: str, fill: int = 0xFF) -> tuple[np.ndarray, np.ndarray]:
    blocks = tuple(empty_blocks(kv_format, k.shape[1], len(k), fill) for _ in range(2))
    for position in range(len(k)):
        write_kv(kv_format, k[position], position, blocks[0], is_value=False, isa=isa)
        write_kv(kv_format, v[position], position, blocks[1], is_value=True, isa=isa)
    return blocks


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    scores = k @ q.astype(np.float64) * scale
    weights = np.exp(scores - scores.max())
    return weights @ v / weights.sum()


def case(head_dim: int, num_keys: int, num_rows: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(head_dim + num_keys)
    return tuple(rng.standard_normal((n, head_dim)).astype(np.float32) for n in (num_rows, num_keys, num_keys))


def tolerance(head_dim: int, num_keys: int, scale: float) -> float:
    """float32 against float64 on the same rounded K and V.

    A score is a sum of head_dim products, |q·k| terms of order head_dim: its error moves a weight by as much relatively. The
    sums over keys add (keys + 4) roundings; |V| < 5.
    """
    return 5 * 2.0**-24 * (head_dim * head_dim * scale + num_keys + 32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("num_keys", [1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 600])
def test_attention_matches_dense(isa, kv_format, head_dim, num_keys):
    q, k, v = case(head_dim, num_keys)
    scale = head_dim**-0.5
    out = attend(kv_format, q[0], num_keys, *store(kv_format, k, v, isa), scale=scale, isa=isa)
    expected = dense(q[0], rounded(kv_format, k), rounded(kv_format, v), scale)
    assert_close(out, expected, atol=tolerance(head_dim, num_keys, scale))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_stale_slots_are_never_multiplied(isa, kv_format):
    """Another request's NaN past the last key changes no bit; nor does anything a later row of the tile may see."""
    for num_keys in (1, 2, 3, 5, 17, 31, 33):
        q, k, v = case(64, num_keys)
        results = [
            attend(kv_format, q[0], num_keys, *store(kv_format, k, v, isa, fill), scale=0.125, isa=isa) for fill in (0xFF, 0x00)
        ]
        assert np.isfinite(results[0]).all()
        assert np.array_equal(results[0], results[1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_key_of_nan_reaches_only_the_rows_that_see_it(isa, kv_format):
    q, k, v = case(64, 40, num_rows=5)
    v[20], k[20] = np.nan, np.nan
    blocks = store(kv_format, k, v, isa)
    out = attend_span(kv_format, q, np.array([19, 20, 21, 22, 40], np.int32), *blocks, scale=0.125, isa=isa)
    assert np.isfinite(out.acc[:2]).all()
    assert np.isnan(out.acc[2:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_row_has_the_same_bits_alone_and_in_any_tile(isa, kv_format):
    num_keys = np.array([100, 101, 0, 102, 3, 33, 34, 256, 1, 250], np.int32)
    q, k, v = case(80, 256, num_rows=len(num_keys))
    blocks = store(kv_format, k, v, isa)
    together = attend_span(kv_format, q, num_keys, *blocks, scale=0.11, isa=isa)
    for row in range(len(num_keys)):
        alone = attend_span(kv_format, q[row : row + 1], num_keys[row : row + 1], *blocks, scale=0.11, isa=isa)
        assert np.array_equal(alone.acc[0], together.acc[row])
        assert alone.m[0] == together.m[row]
        assert alone.l[0] == together.l[row]
    assert together.m[2] == -np.inf
    assert together.l[2] == 0.0
    assert (together.acc[2] == 0.0).all()


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("num_keys", [7, 300])
def test_all_tables_give_the_same_bits(kv_format, num_keys):
    q, k, v = case(96, num_keys)
    first = store(kv_format, k, v, "scalar")
    expected = attend(kv_format, q[0], num_keys, *first, scale=0.1, isa="scalar")
    for isa in ISAS:
        blocks = store(kv_format, k, v, isa)
        assert np.array_equal(blocks[0], first[0])
        assert np.array_equal(blocks[1], first[1])
        out = attend(kv_format, q[0], num_keys, *blocks, scale=0.1, isa=isa)
        assert np.array_equal(out.view(np.uint32), expected.view(np.uint32)), isa


@pytest.mark.parametrize("kv_format", FORMATS)
def test_packed_order_is_the_one_kv_store_documents(kv_format):
    head_dim, num_keys = 32, 45
    _, k, v = case(head_dim, num_keys)
    k_blocks, v_blocks = store(kv_format, k, v, "scalar")
    per = {"bf16": 2, "int8": 4, "f32": 1}[kv_format]
    element = {"bf16": np.uint16, "int8": np.int8, "f32": np.float32}[kv_format]
    raw = BLOCK_SIZE * head_dim * np.dtype(element).itemsize
    expected_k, expected_v = rounded(kv_format, k), rounded(kv_format, v)
    for t in range(num_keys):
        block, slot = divmod(t, BLOCK_SIZE)
        k_codes = k_blocks[block, :raw].view(element).reshape(2, head_dim // per, 16, per)
        v_codes = v_blocks[block, :raw].view(element).reshape(head_dim // 16, BLOCK_SIZE // per, 16, per)
        k_row = k_codes[slot // 16, :, slot % 16, :].ravel()
        v_row = v_codes[:, slot // per, :, slot % per].ravel()
        for row, expected, blocks in ((k_row, expected_k[t], k_blocks), (v_row, expected_v[t], v_blocks)):
            if kv_format == "bf16":
                value = (row.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            elif kv_format == "f32":
                value = row.astype(np.float64)
            else:
                value = row * blocks[block, raw:].view(np.float32)[slot].astype(np.float64)
            assert np.array_equal(value, expected)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_numpy_twin_agrees_with_the_kernel(kv_format):
    q, k, v = case(64, 50)
    out = attend(kv_format, q[0], 50, *store(kv_format, k, v, "auto"), scale=0.125)
    expected = reference_attend(q, rounded(kv_format, k), rounded(kv_format, v), scale=0.125)
    assert_close(out[None], expected, atol=tolerance(64, 50, 0.125))


def test_bad_input_is_refused():
    q, k, v = case(64, 40)
    blocks = store("bf16", k, v, "auto")
    with pytest.raises(ValueError, match="row 0 sees 65 keys"):
        attend_span("bf16", q, np.array([65], np.int32), *blocks, scale=1.0)
    with pytest.raises(ValueError, match="row 0 sees -1 keys"):
        attend_span("bf16", q, np.array([-1], np.int32), *blocks, scale=1.0)
    with pytest.raises(ValueError, match="unknown KV format 'fp8'"):
        attend_span("fp8", q, np.array([1], np.int32), *blocks, scale=1.0)
    with pytest.raises(ValueError, match="head_dim 40"):
        write_kv("bf16", np.zeros(40, np.float32), 0, blocks[0], is_value=False)
    with pytest.raises(ValueError, match="bytes a block, needs"):
        write_kv("bf16", np.zeros(128, np.float32), 0, blocks[0], is_value=False)
    with pytest.raises(ValueError, match="outside the blocks"):
        write_kv("bf16", np.zeros(64, np.float32), 64, blocks[0], is_value=False)
