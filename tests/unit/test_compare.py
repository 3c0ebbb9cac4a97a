"""The comparer itself: what it must not let pass."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.compare import assert_close, cosine, kl_divergence


def _matrix() -> np.ndarray:
    return np.arange(1.0, 13.0).reshape(3, 4)


def test_equal_within_tolerance_passes():
    assert_close(_matrix() + 1e-4, _matrix(), atol=1.1e-4)
    assert_close(_matrix() * 1.001, _matrix(), atol=0.0, rtol=2e-3)


def test_fails_on_nan_in_either():
    broken = _matrix()
    broken[1, 2] = np.nan
    with pytest.raises(AssertionError, match=r"first at \[1, 2\]"):
        assert_close(broken, _matrix(), atol=1e9)
    with pytest.raises(AssertionError, match="1 of 12 wrong"):
        assert_close(_matrix(), broken, atol=1e9, rtol=1e9)


def test_fails_on_a_flipped_sign_and_a_swapped_row():
    with pytest.raises(AssertionError, match="12 of 12 wrong"):
        assert_close(-_matrix(), _matrix(), atol=1.0)
    with pytest.raises(AssertionError, match="8 of 12 wrong"):
        assert_close(_matrix()[[1, 0, 2]], _matrix(), atol=1.0)


def test_fails_on_a_buffer_compared_with_itself():
    matrix = _matrix()
    with pytest.raises(AssertionError, match="compared with itself"):
        assert_close(matrix, matrix, atol=1.0)
    with pytest.raises(AssertionError, match="compared with itself"):
        assert_close(matrix[:2], matrix[1:], atol=100.0)


def test_fails_on_shapes_that_would_broadcast_and_on_nothing():
    with pytest.raises(AssertionError, match="shape"):
        assert_close(np.ones((3, 1)), np.ones((3, 4)), atol=1.0)
    with pytest.raises(AssertionError, match="nothing"):
        assert_close(np.ones((0, 4)), np.ones((0, 4)), atol=1.0)


def test_cosine_and_kl_divergence_of_known_values():
    assert cosine([1, 0], [1, 1]) == pytest.approx(0.5**0.5)
    halves, skewed = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    assert kl_divergence(halves, skewed + 3)[0] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert kl_divergence(halves, halves.copy())[0] == pytest.approx(0.0)
