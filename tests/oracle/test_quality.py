"""What docs/numerics.md promises of the demo model against float32, on held-out text (benchmarks/divergence.py measures)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.divergence import MAX_ADDED_BY_INT8, MAX_DIVERGENCE, MIN_AGREEMENT, NUM_TOP, Figures, measure
from hasten.request import TokenLogprobs
from hasten.weights import open_checkpoint


def entries(logprobs: np.ndarray, num_top: int) -> tuple[TokenLogprobs, ...]:
    """The best of [positions, vocab]."""
    order = np.argsort(-logprobs, axis=1, kind="stable")[:, :num_top]
    pairs = zip(logprobs, order, strict=True)
    return tuple(TokenLogprobs(0, 0.0, tuple((int(i), float(row[i])) for i in ids)) for row, ids in pairs)


def random_logprobs(seed: int, spread: float = 1.0) -> np.ndarray:
    logits = np.random.default_rng(seed).standard_normal((50, 300)) * spread
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_figures_are_divergence_and_agreement():
    """All tokens inside: the exact divergence. Most outside: never more, and still far from zero."""
    expected, actual = random_logprobs(1), random_logprobs(1) * 0.7
    actual -= np.log(np.exp(actual).sum(axis=1, keepdims=True))
    exact = (np.exp(expected) * (expected - actual)).sum(axis=1).mean()
    whole, cut, other = Figures(), Figures(), Figures()
    whole.add(expected, entries(actual, 300))
    cut.add(expected, entries(actual, 60))
    other.add(expected, entries(random_logprobs(2), 300))
    assert whole.mean_divergence == pytest.approx(exact, rel=1e-6)
    assert 0.3 * exact < cut.mean_divergence <= exact
    assert whole.agreement == 1.0
    assert whole.num_positions == 50
    assert other.mean_divergence > 0.5
    assert other.agreement < 0.1


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_the_demo_model_stays_close_to_float32(smollm2_path: Path):
    figures = measure(open_checkpoint(smollm2_path), 2_000, threads=2)
    f32, bf16, int8 = (figures[kv_format] for kv_format in ("f32", "bf16", "int8"))
    assert bf16.num_positions >= 2_000
    assert bf16.sum_rest / bf16.num_positions < 0.1, f"too much lies outside the {NUM_TOP} best"
    assert 0 < f32.mean_divergence <= bf16.mean_divergence <= MAX_DIVERGENCE
    assert bf16.agreement >= MIN_AGREEMENT
    assert int8.mean_divergence - bf16.mean_divergence <= MAX_ADDED_BY_INT8


@pytest.mark.full
def test_too_little_text_is_an_error(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("benchmarks.divergence.documents", lambda split: ())
    with pytest.raises(ValueError, match="0 positions, 10 are asked for"):
        measure(open_checkpoint(smollm2_path), 10, threads=1)
