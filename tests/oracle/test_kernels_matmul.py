"""Packing, quantization of activations and matrix products against float64, on every kernel table this CPU can run."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.ops import kernels
from hasten.ops.matmul import PANEL, matmul, pack, quantize_rows, unpack_row
from tests.support.compare import assert_close
from tests.support.gguf_rows import FORMATS, QUANTIZED, quantized_rows, random_rows, values

ISAS = kernels.available_isas()
SHAPES = [(1, 32), (15, 64), (16, 96), (17, 128), (33, 192), (50, 576), (16, 1536)]  # around a panel; every K-block size


def activations(rows: int, k: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32)


def bound(weights: np.ndarray, x: np.ndarray, *, quantized: bool) -> np.ndarray:
    """Largest error of one output, [rows, n].

    float32 sums: at most k + 4 roundings of 2^-24, each relative to Σ|w·x| (for Q4_1 |d·c| + |m| replaces |w|: at most 4 times
    here). Quantized: also half a step, max|x| / 32258 / 2, of every activation.
    """
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(weights).T
    total = (x.shape[1] + 4) * 2.0**-24 * magnitude * (4 if quantized else 1)
    if quantized:
        total += np.abs(x).max() / 32258 / 2 * (np.abs(weights).sum(axis=1)[None, :] * 1.001) + 1e-6
    return total


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_matmul_matches_float64(isa, weight_format, n, k):
    rows = random_rows(weight_format, n, k, seed=n + k)
    weights = values(weight_format, rows)
    packed = pack(weight_format, rows, k)
    x = activations(5, k)
    error = np.abs(matmul(packed, x, isa=isa).astype(np.float64) - x.astype(np.float64) @ weights.T)
    assert (error <= bound(weights, x, quantized=packed.is_quantized)).all(), float(error.max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_unpack_row_is_exact(isa, weight_format):
    rows = random_rows(weight_format, 21, 96, seed=1)
    packed, expected = pack(weight_format, rows, 96), values(weight_format, rows)
    for row in (0, 15, 16, 20):
        # one rounding of the exact value: what casting the float64 value to float32 does
        assert np.array_equal(unpack_row(packed, row, isa=isa), expected[row].astype(np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_row_has_the_same_bits_alone_and_in_any_tile(isa, weight_format):
    packed = pack(weight_format, random_rows(weight_format, 40, 192, seed=2), 192)
    x = activations(21, 192)
    together = matmul(packed, x, isa=isa)
    for row in range(len(x)):
        assert np.array_equal(matmul(packed, x[row : row + 1], isa=isa)[0], together[row])
    reversed_rows = matmul(packed, np.ascontiguousarray(x[::-1]), isa=isa)
    assert np.array_equal(reversed_rows[::-1], together)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_format", ["f32", "q8_0", "q4_1"])
def test_panels_and_rows_can_be_computed_in_pieces(isa, weight_format):
    packed = pack(weight_format, random_rows(weight_format, 75, 64, seed=4), 64)
    x = activations(7, 64)
    whole = matmul(packed, x, isa=isa)
    pieces = np.full_like(whole, 77.0)
    source = quantize_rows(x, isa=isa) if packed.is_quantized else x
    for panel in reversed(range(packed.num_panels)):
        for row in range(0, 7, 3):
            matmul(packed, source, isa=isa, out=pieces, panels=(panel, panel + 1), rows=(row, min(row + 3, 7)))
    assert np.array_equal(pieces, whole)
    untouched = np.full_like(whole, 77.0)
    matmul(packed, source, isa=isa, out=untouched, panels=(1, 2), rows=(2, 4))
    assert np.array_equal(untouched[2:4, PANEL : 2 * PANEL], whole[2:4, PANEL : 2 * PANEL])
    untouched[2:4, PANEL : 2 * PANEL] = 77.0
    assert (untouched == 77.0).all()


@pytest.mark.parametrize("weight_format", FORMATS)
def test_all_tables_give_the_same_bits(weight_format):
    packed = pack(weight_format, random_rows(weight_format, 100, 320, seed=6), 320)
    x = activations(9, 320) * np.float32(10)
    first = matmul(packed, x, isa="scalar")
    for isa in ISAS:
        assert np.array_equal(matmul(packed, x, isa=isa).view(np.uint32), first.view(np.uint32)), isa


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_format", QUANTIZED)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_integers_do_not_overflow(isa, weight_format, byte, sign):
    """Every code the largest or smallest, every activation ±32258: the exact integer answer, scaled."""
    codes = np.full((16, 8, 32 if weight_format == "q8_0" else 16), byte, np.uint8)
    rows = quantized_rows(weight_format, codes, np.random.default_rng(8))
    x = np.full((1, 256), sign, np.float32)
    expected = x.astype(np.float64) @ values(weight_format, rows).T
    # no rounding of activations; float32: a conversion, 2 fmas a group and 2 at the end, on terms at most 4 times the sum
    assert_close(matmul(pack(weight_format, rows, 256), x, isa=isa), expected, atol=1e-6, rtol=4 * 20 * 2.0**-24)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [32, 64, 192, 576, 1536])
def test_quantize_rows_sums_and_scales(isa, k):
    x = activations(4, k) * np.float32(3)
    x[1] = 0
    x[2, :32] = 1e-31
    q = quantize_rows(x, isa=isa)
    block = next((b for b in (256, 192, 128, 64) if k % b == 0), 32)
    largest = np.abs(x).reshape(4, -1, block).max(-1)
    largest[largest < 1e-30] = 0
    assert_close(np.array(q.scales), (largest.astype(np.float64) / 32258).ravel(), atol=0, rtol=2.0**-24)
    step = largest.astype(np.float64) / 32258
    wide = np.divide(x.reshape(4, -1, block), step[..., None], out=np.zeros((4, k // block, block)), where=step[..., None] > 0)
    sums = np.array(q.group_sums).reshape(4, -1)
    # half a step for each of 32 values, and float32's 2^-23 of up to 32258 for the product: 32 · (0.5 + 0.01)
    assert_close(sums, wide.reshape(4, -1, 32).sum(-1), atol=16.4)
    assert np.abs(sums).max() <= 32 * 32258


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_broken_activation_is_seen_in_its_row_only(isa, poison):
    packed = pack("q8_0", random_rows("q8_0", 16, 64, seed=9), 64)
    x = activations(3, 64)
    clean = matmul(packed, x, isa=isa)
    x[1, 5] = poison
    out = matmul(packed, x, isa=isa)
    assert np.isnan(out[1]).all()
    assert np.array_equal(out[[0, 2]], clean[[0, 2]])


def test_bad_input_is_refused_with_numbers():
    with pytest.raises(ValueError, match="unknown weight format 'q9'"):
        pack("q9", np.zeros((1, 34), np.uint8), 32)
    with pytest.raises(ValueError, match=r"multiple of 32"):
        pack("q8_0", np.zeros((1, 68), np.uint8), 48)
    with pytest.raises(ValueError, match=r"needs 68 bytes a row, got 34"):
        pack("q8_0", np.zeros((1, 34), np.uint8), 64)
    packed = pack("q8_0", random_rows("q8_0", 16, 64, seed=9), 64)
    with pytest.raises(ValueError, match="different row lengths"):
        matmul(packed, activations(1, 96))
    with pytest.raises(ValueError, match="multiple of 32"):
        matmul(packed, activations(1, 40))
    with pytest.raises(ValueError, match=r"out has shape \(1, 15\), expected \(1, 16\)"):
        matmul(packed, activations(1, 64), out=np.zeros((1, 15), np.float32))
    with pytest.raises(ValueError, match="panels 0 to 2 of 1"):
        matmul(packed, activations(1, 64), panels=(0, 2))
    with pytest.raises(TypeError):
        matmul(packed, activations(1, 64).astype(np.float64))
    with pytest.raises(ValueError, match="row 16 to 17 of 16"):
        unpack_row(packed, 16)
