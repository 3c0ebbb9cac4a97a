"""When requests are sent, and how long they are."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from hasten.bench.arrivals import arrival_offsets
from hasten.bench.lengths import parse_lengths
from hasten.errors import UsageError


def _first(kind: Any, rate: float, count: int, **more: Any) -> np.ndarray[Any, Any]:
    return np.asarray(list(itertools.islice(arrival_offsets(kind, rate, seed=1, **more), count)))


def test_constant_arrivals_do_not_drift() -> None:
    assert _first("constant", 3.0, 3001)[3000] == 1000.0


def test_poisson_arrivals_have_the_rate_and_the_spread() -> None:
    gaps = np.diff(_first("poisson", 20.0, 5000))
    assert gaps.mean() == pytest.approx(0.05, rel=0.05)
    assert gaps.std() == pytest.approx(0.05, rel=0.06)  # exponential: as large as the mean


def test_bursts_keep_the_mean_rate() -> None:
    times = _first("bursts", 20.0, 8000, burst_size=8)
    assert times[-1] == pytest.approx(8000 / 20.0, rel=0.1)
    assert len(set(times[:80])) == 10


@pytest.mark.parametrize(("kind", "rate"), [("poisson", 0.0), ("poisson", float("inf")), ("poisson", -1.0), ("tidal", 1.0)])
def test_bad_arrivals_are_refused(kind: Any, rate: float) -> None:
    with pytest.raises(UsageError):
        arrival_offsets(kind, rate, seed=0)


def test_lengths_have_the_stated_spread() -> None:
    rng = random.Random(4)
    draws = np.asarray([parse_lengths("lognormal:100:0.5:400").draw(rng) for _ in range(4000)])
    assert np.median(draws) == pytest.approx(100, rel=0.05)
    assert np.log(draws[draws < 400]).std() == pytest.approx(0.5, rel=0.1)
    assert draws.max() == 400
    assert {parse_lengths("uniform:3:5").draw(rng) for _ in range(100)} == {3, 4, 5}
    assert parse_lengths("17").draw(rng) == 17
    assert np.mean([parse_lengths("exponential:50").draw(rng) for _ in range(3000)]) == pytest.approx(50, rel=0.1)
    assert min(parse_lengths("normal:5:50").draw(rng) for _ in range(100)) == 1


@pytest.mark.parametrize("text", ["", "0", "-3", "x", "uniform:5", "uniform:9:3", "lognormal:nan:1", "zipf:1:2", "1:2:3:4"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="lognormal"):
        parse_lengths(text)
