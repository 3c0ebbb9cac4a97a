"""Norm, activation, rotations, sampling rows and our own functions against float64, on every kernel table this CPU can run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hasten.ops import kernels, rows, sampling
from hasten.ops.reference import rows as reference
from tests.support.compare import assert_close

ISAS = kernels.available_isas()
SIZES = [1, 2, 15, 16, 17, 31, 33, 64, 100, 576]
ULP = 2.0**-23


def normal(*shape: int, seed: int = 5, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", SIZES)
def test_rms_norm(isa, n):
    x, weight = normal(3, n), normal(n, seed=6)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    # n/16 + 5 roundings in the sum, halved by the root, and 5 after it
    assert_close(rows.rms_norm(x, weight, eps=1e-5, isa=isa), expected, atol=1e-12, rtol=(n / 32 + 8) * ULP)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", SIZES)
def test_add_and_silu_mul(isa, n):
    x, y = normal(n), normal(n, seed=7)
    total = x.copy()
    rows.add_in_place(total, y, isa=isa)
    assert np.array_equal(total, x + y)  # one rounding either way
    gate = normal(n, scale=30.0)
    expected = gate / (1 + np.exp(-gate.astype(np.float64))) * y
    assert_close(rows.silu_mul(gate, y, isa=isa), expected, atol=1e-37, rtol=6 * ULP)  # exp 2, sum, quotient, product


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("head_dim", "dim"), [(2, 2), (64, 64), (80, 32), (128, 126)])
def test_rope(isa, interleaved, head_dim, dim):
    head, angle = normal(head_dim), normal(dim // 2, seed=8, scale=3.0)
    cos, sin = np.cos(angle), np.sin(angle)
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + dim // 2) for i in range(dim // 2)]
    expected = head.astype(np.float64)
    for i, (a, b) in enumerate(pairs):
        turned = (float(head[a]) + 1j * float(head[b])) * (float(cos[i]) + 1j * float(sin[i]))
        expected[a], expected[b] = turned.real, turned.imag
    actual = rows.rope(head, cos, sin, interleaved=interleaved, isa=isa)
    assert_close(actual, expected, atol=2 * ULP * float(np.abs(head).max()))  # a product and an fma of values below max·√2
    assert np.array_equal(actual[dim:], head[dim:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [2, 16, 48, 64, 80, 576])
def test_hadamard(isa, n):
    x, size = normal(n), n & -n
    signs = np.array([[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)])
    expected = (x.astype(np.float64).reshape(-1, size) @ signs / math.sqrt(size)).ravel()
    # log2(size) additions and a product, relative to the norm of a block
    bound = (math.log2(size) + 2) * ULP * np.linalg.norm(x.reshape(-1, size), axis=1).max()
    assert_close(rows.hadamard(x, isa=isa), expected, atol=float(bound))
    assert_close(rows.hadamard(rows.hadamard(x, isa=isa), isa=isa), x, atol=float(2 * bound))  # its own inverse


@pytest.mark.parametrize("isa", ISAS)
def test_exp_over_its_whole_range(isa):
    x = np.linspace(-87.33, 88.72, 100_003).astype(np.float32)
    expected = np.exp(x.astype(np.float64))
    assert_close(sampling.exp_scaled(x, scale=1.0, shift=0.0, isa=isa), expected, atol=0, rtol=2 * ULP)
    ends = np.array([-np.inf, -1e30, -87.4, -0.0, 0.0, 88.73, 1e30, np.inf, np.nan], np.float32)
    got = sampling.exp_scaled(ends, scale=1.0, shift=0.0, isa=isa)
    assert np.array_equal(got, np.array([0, 0, 0, 1, 1, np.inf, np.inf, np.inf, np.nan], np.float32), equal_nan=True)


@pytest.mark.parametrize("isa", ISAS)
def test_exp_scaled_is_one_at_the_maximum(isa):
    x, scale = normal(1000, scale=7.0), np.float32(1 / 0.7)
    out = sampling.exp_scaled(x, scale=float(scale), shift=float(x.max() * scale), isa=isa)
    assert out.max() == out[x.argmax()] == 1.0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", SIZES)
def test_log_sum_exp(isa, n):
    x = normal(n, scale=10.0)
    wide = x.astype(np.float64)
    expected = wide.max() + math.log(np.exp(wide - wide.max()).sum())
    # n/16 + 6 roundings in the sum and 3 in each exp, absolute after the log; one of the result
    assert abs(sampling.log_sum_exp(x, isa=isa) - expected) <= (n / 16 + 10) * ULP + ULP * abs(expected)


@pytest.mark.parametrize("isa", ISAS)
def test_log_sum_exp_at_the_ends(isa):
    inf = math.inf
    assert sampling.log_sum_exp(np.array([-inf, -inf], np.float32), isa=isa) == -inf
    assert sampling.log_sum_exp(np.array([1.0, inf], np.float32), isa=isa) == inf
    assert sampling.log_sum_exp(np.array([-inf, 2.5], np.float32), isa=isa) == 2.5
    assert math.isnan(sampling.log_sum_exp(np.array([1.0, np.nan], np.float32), isa=isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 48, 49, 1000])
def test_argmax_takes_the_lowest_index_and_never_nan(isa, n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        x = rng.integers(-3, 3, n).astype(np.float32)  # many ties
        x[rng.random(n) < 0.3] = np.nan
        x[rng.random(n) < 0.2] = -np.inf
        usable = [(-value, i) for i, value in enumerate(x.tolist()) if value > -np.inf]  # NaN compares false
        expected = min(usable)[1] if usable else -1
        assert sampling.argmax(x, isa=isa) == expected


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n", [3, 17, 576])
def test_all_tables_give_the_same_bits(isa, n):
    x, y = normal(n, scale=20.0), normal(n, seed=9)
    for run in (
        lambda name: rows.rms_norm(x[None], y, eps=1e-6, isa=name),
        lambda name: rows.silu_mul(x, y, isa=name),
        lambda name: rows.hadamard(x, isa=name),
        lambda name: sampling.exp_scaled(x, scale=0.3, shift=1.0, isa=name),
        lambda name: np.array([sampling.log_sum_exp(x, isa=name)], np.float32),
    ):
        assert np.array_equal(run(isa).view(np.uint32), run("scalar").view(np.uint32))


def test_own_functions_against_libm():
    rng = np.random.default_rng(12)
    for x in (rng.standard_normal(3000) * 10.0 ** rng.integers(-5, 9, 3000)).tolist():
        if abs(x) < 1e9:
            sin, cos = kernels.own_sin_cos(x)
            assert sin == pytest.approx(math.sin(x), rel=1e-14, abs=0)
            assert cos == pytest.approx(math.cos(x), rel=1e-14, abs=0)
        if abs(x) < 700:
            assert kernels.own_exp(x) == pytest.approx(math.exp(x), rel=1e-14, abs=0)
        if x > 0:
            assert kernels.own_log(x) == pytest.approx(math.log(x), rel=1e-14, abs=0)
    assert kernels.own_log(0.0) == -math.inf
    assert math.isnan(kernels.own_log(-1.0))
    assert kernels.own_exp(1000.0) == math.inf
    assert kernels.own_exp(-1000.0) == 0.0
    assert all(math.isnan(v) for v in kernels.own_sin_cos(math.inf))
    # a double close to a multiple of π/2: what is left of it must still have 14 digits
    assert kernels.own_sin_cos(22 * 16_384.0)[0] == pytest.approx(math.sin(22 * 16_384.0), rel=1e-14, abs=0)


def test_numpy_twins_agree_with_the_kernels():
    x, y, angle = normal(4, 80), normal(80, seed=2), normal(16, seed=3)
    assert_close(reference.rms_norm(x, y, eps=1e-5), rows.rms_norm(x, y, eps=1e-5), atol=1e-5)
    assert_close(reference.silu_mul(x[0], y), rows.silu_mul(x[0], y), atol=1e-6)
    assert_close(reference.hadamard(x[0]), rows.hadamard(x[0]), atol=1e-5)
    assert_close([reference.log_sum_exp(x[0])], [sampling.log_sum_exp(x[0])], atol=1e-5)
    for interleaved in (True, False):
        expected = reference.rope(x[0], np.cos(angle), np.sin(angle), interleaved=interleaved)
        assert_close(rows.rope(x[0], np.cos(angle), np.sin(angle), interleaved=interleaved), expected, atol=1e-6)


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match=r"weight has shape \(3\), expected \(4\)"):
        rows.rms_norm(normal(2, 4), normal(3), eps=1e-5)
    with pytest.raises(ValueError, match="up has shape"):
        rows.silu_mul(normal(4), normal(5))
    with pytest.raises(ValueError, match="more rotated dimensions"):
        rows.rope(normal(4), normal(3), normal(3), interleaved=False)
    with pytest.raises(TypeError):
        sampling.argmax(np.zeros(4))
