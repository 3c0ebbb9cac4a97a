"""Comparing arrays so that noise, NaN and a buffer compared with itself never pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def assert_close(actual: npt.ArrayLike, expected: npt.ArrayLike, *, atol: float, rtol: float = 0.0) -> None:
    """Every element within atol + rtol · |expected|; shapes equal; NaN is wrong wherever it is."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    assert actual.size > 0, "nothing is compared"
    assert not np.shares_memory(actual, expected), "a buffer is compared with itself"
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    wrong = ~(difference <= atol + rtol * np.abs(expected.astype(np.float64)))  # not `> atol`: NaN must count as wrong
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} wrong, first at {np.argwhere(wrong)[0].tolist()}: "
        f"{actual[wrong][0]} for {expected[wrong][0]}, largest difference {np.nanmax(difference):.3g}"
    )


def cosine(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Cosine of the angle between two arrays seen as vectors."""
    x, y = np.asarray(a, dtype=np.float64).ravel(), np.asarray(b, dtype=np.float64).ravel()
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def kl_divergence(
    expected_logits: npt.NDArray[np.floating], actual_logits: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """KL(expected ‖ actual) of each row, in nats. [n, vocab] twice → [n]."""
    expected, actual = _log_softmax(expected_logits), _log_softmax(actual_logits)
    return (np.exp(expected) * (expected - actual)).sum(axis=-1)


def _log_softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
