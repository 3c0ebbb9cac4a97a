"""Weight formats against the gguf package's own arithmetic, and bad sizes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from hasten.errors import ShapeError
from hasten.quant import FORMATS
from tests.support.compare import assert_close

_GGML = {name: gguf.GGMLQuantizationType[name.upper()] for name in FORMATS}


def _weights(rows: int, cols: int) -> np.ndarray:
    weights = np.random.default_rng(7).standard_normal((rows, cols)).astype(np.float32)
    weights[0, :32] = 0  # a block of zeros has scale 0
    weights[1, :32] = 3.5  # a constant block has no range
    return weights


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_are_those_of_the_gguf_package(name):
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[_GGML[name]]
    assert (FORMATS[name].block_size, FORMATS[name].block_bytes) == (block_size, block_bytes)
    assert FORMATS[name].row_bytes(block_size * 3) == block_bytes * 3


@pytest.mark.parametrize("name", FORMATS)
def test_dequantize_is_exact_on_any_bytes(name):
    """Codes of every value, scales of every size; what float16 reads as NaN or infinity is left out."""
    form = FORMATS[name]
    rng = np.random.default_rng(11)
    data = rng.integers(0, 256, (5, form.row_bytes(form.block_size * 4)), dtype=np.uint8)
    if name in ("q8_0", "q4_0", "q4_1"):
        blocks = data.reshape(-1, form.block_bytes)
        num_scales = 2 if name == "q4_1" else 1
        scales = (rng.standard_normal((len(blocks), num_scales)) * 0.1).astype("<f2")
        blocks[:, : 2 * num_scales] = scales.view(np.uint8)
    expected = gguf.quants.dequantize(data, _GGML[name])
    actual = form.dequantize(data)
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    assert not np.shares_memory(actual, expected)
    assert actual.tobytes() == np.ascontiguousarray(expected, dtype=np.float32).tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_quantize_gives_the_bytes_of_the_gguf_package(name):
    weights = _weights(6, 96)
    assert FORMATS[name].quantize(weights).tobytes() == gguf.quants.quantize(weights, _GGML[name]).tobytes()


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("f32", 0),
        ("f16", 2**-11),
        ("bf16", 2**-8),
        ("q8_0", 1 / 120),
        ("q4_0", 1 / 7),
        ("q4_1", 1 / 14),
    ],
)
def test_round_trip_is_within_one_step(name, step):
    """A step is the distance of two codes, as a share of the block's largest magnitude (for q4_1: of its range)."""
    weights = _weights(6, 96)
    back = FORMATS[name].dequantize(FORMATS[name].quantize(weights))
    assert_close(back, weights, atol=step * 2 * np.abs(weights).max())


def test_bf16_rounds_to_even_and_keeps_nan():
    weights = np.array([[1.0 + 2**-8, 1.0 + 3 * 2**-8, np.inf, -np.inf, np.nan, 0.0]], dtype=np.float32)
    back = FORMATS["bf16"].dequantize(FORMATS["bf16"].quantize(weights))
    assert back[0, :2].tolist() == [1.0, 1.0 + 2**-6]
    assert back[0, 2:4].tolist() == [np.inf, -np.inf]
    assert np.isnan(back[0, 4])


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1"])
def test_rows_must_be_whole_blocks(name):
    with pytest.raises(ShapeError, match=f"33 weights is not a multiple of {name}'s 32"):
        FORMATS[name].row_bytes(33)
    with pytest.raises(ShapeError, match="shape"):
        FORMATS[name].dequantize(np.zeros((2, 35), dtype=np.uint8))
    with pytest.raises(ShapeError, match="matrix"):
        FORMATS[name].quantize(np.zeros(32, dtype=np.float32))
