"""The gate: noise passes, planted regressions do not, and too few requests are said to be too few."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from hasten.bench.compare import Change, compare, incomparable, parse_gate, sigmas_for, trustworthy
from hasten.errors import UsageError

PAIRS = 20


def _result(
    rng: np.random.Generator, count: int, *, factor: float = 1.0, sigma: float = 0.1, memory: float | None = None
) -> dict[str, Any]:
    """A run with log-normal latencies, slightly correlated in time as on a shared machine.

    `memory`: the correlation of a request with the next (a first-order autoregression), instead of drifts of ten requests.
    """
    drift = np.repeat(rng.normal(0, sigma / 10, size=count // 10 + 1), 10)[:count]
    ttft = 200.0 * factor * np.exp(rng.normal(0, sigma, size=count) + drift)
    if memory is not None:
        ttft = 200.0 * factor * np.exp(sigma * _autoregression(rng, count, memory))
    tpot = 20.0 * factor * np.exp(rng.normal(0, sigma / 4, size=count))
    start = np.cumsum(rng.exponential(0.1 * factor, size=count))
    e2e = ttft + 50 * tpot
    return {
        "url": "x",
        "audit": {"saturated": False},
        "requests": {"ok": count, "measured": count, "errors": 0},
        "throughput": {"output_tokens_per_s": 50 * count / float(start[-1])},
        "samples": {
            "start_s": start.tolist(),
            "num_tokens": [50] * count,
            "ttft_ms": ttft.tolist(),
            "tpot_ms": tpot.tolist(),
            "e2e_ms": e2e.tolist(),
            "itl_ms": [[float(value)] * 3 for value in tpot],
            "chunk_gap_ms": [[]] * count,
            "failed": _bursts(rng, count, 0.02 + (factor - 1)),
            "met": (1 - np.asarray(_bursts(rng, count, 0.1 + (factor - 1)))).tolist(),
        },
    }


def _autoregression(rng: np.random.Generator, count: int, memory: float) -> np.ndarray:
    """Standard normal values, each `memory` times the one before and noise."""
    values = rng.normal(size=count)
    for i in range(1, count):
        values[i] = memory * values[i - 1] + (1 - memory**2) ** 0.5 * values[i]
    return values


def _bursts(rng: np.random.Generator, count: int, share: float, length: int = 5) -> list[int]:
    """0 and 1, the ones in runs of `length`, `share` of all on average."""
    begins = rng.random(count) < -np.log(1 - min(0.99, max(0.0, share))) / length
    return (np.convolve(begins, np.ones(length))[:count] > 0).astype(int).tolist()


def _asked_size(gate: str, sigma: float, memory: float | None = None) -> int:
    """Start far too small and give it what it asks for until it is content, as a user would."""
    rng = np.random.default_rng(1)
    count = 100
    while True:
        a, b = (_result(rng, count, sigma=sigma, memory=memory) for _ in range(2))
        change = compare(a, b, parse_gate(gate))
        assert change.needed is not None
        if change.needed <= count:
            return count
        assert change.verdict != "cannot tell" or f"{change.needed:,} a side" in change.text
        assert change.needed < 100_000
        count = change.needed


@pytest.mark.parametrize(
    ("gate", "sigma", "memory"),
    [
        ("ttft_p50:5%", 0.15, None),
        ("ttft_p99:5%", 0.05, None),
        ("e2e_mean:2%", 0.1, None),
        ("ttft_p50:5%", 0.15, 0.9),
        ("output_tokens_per_s:10%", 0.05, None),
        ("error_rate:3%", 0.1, None),
        ("goodput:5%", 0.1, None),
    ],
)
def test_the_gate_at_the_size_it_asks_for(gate: str, sigma: float, memory: float | None) -> None:
    count = _asked_size(gate, sigma, memory)
    factor = 1 + parse_gate(gate).threshold
    rng = np.random.default_rng(2)

    def once(factor: float) -> str:
        a, b = (_result(rng, count, sigma=sigma, memory=memory, factor=one) for one in (1.0, factor))
        return compare(a, b, parse_gate(gate)).verdict

    assert sum(once(1.0) == "worse" for _ in range(PAIRS)) <= 1
    assert sum(once(factor) == "worse" for _ in range(PAIRS)) >= 19


def test_many_metrics_at_once_name_no_more_by_chance() -> None:
    """Each metric alone may be wrong in 1 of 80 pairs; seven at 2.5 standard errors would be in 1 of 12."""
    for num_tests in (1, 2, 7):
        alone = 2 * (1 - NormalDist().cdf(sigmas_for(num_tests)))
        assert 1 - (1 - alone) ** num_tests <= 0.0251
    rng = np.random.default_rng(11)
    a, b = _result(rng, 1000), _result(rng, 1000, factor=1.02)
    one, of_seven = (compare(a, b, None, "ttft_p50", num_tests=n) for n in (1, 7))
    assert of_seven.low < one.low < one.high < of_seven.high


def _one(gate: str, factor: float, count: int = 2000, **more: Any) -> Change:
    rng = np.random.default_rng(9)
    return compare(_result(rng, count, **more), _result(rng, count, factor=factor, **more), parse_gate(gate))


def test_a_large_regression_needs_few_requests() -> None:
    assert _one("ttft_p50:5%", 1.5, count=60).verdict == "worse"


def test_an_improvement_is_never_worse() -> None:
    assert _one("ttft_p50:5%", 0.8).verdict == "better"
    assert _one("output_tokens_per_s:5%", 0.8, sigma=0.02).verdict == "better"


def test_lower_throughput_is_worse() -> None:
    change = _one("output_tokens_per_s:10%", 1.4, sigma=0.02)
    assert change.verdict == "worse"
    assert change.b < change.a
    assert change.change > 0


def test_a_change_far_below_the_threshold_passes_however_certain() -> None:
    change = _one("tpot_p50:5%", 1.01, count=5000, sigma=0.02)
    assert change.low > 0  # it is certainly there
    assert change.verdict == "same"


def test_gaps_are_tested_by_request() -> None:
    assert _one("itl_p50:5%", 1.2).verdict == "worse"
    assert _one("itl_p50:5%", 1.0, sigma=0.02).verdict == "same"


def test_a_tail_seen_by_few_requests_gets_no_verdict() -> None:
    change = _one("ttft_p99:5%", 3.0, count=100)
    assert change.verdict == "cannot tell"
    assert (change.needed or 0) >= 1000


def test_shares() -> None:
    rng = np.random.default_rng(3)
    a, b = _result(rng, 1000), _result(rng, 1000)
    a["samples"]["failed"] = [0] * 1000
    b["samples"]["failed"] = ([1] + [0] * 24) * 40
    assert compare(a, b, parse_gate("error_rate:3%")).verdict == "worse"
    b["samples"]["failed"] = [1] + [0] * 999
    assert compare(a, b, parse_gate("error_rate:3%")).verdict == "same"
    a["samples"]["met"], b["samples"]["met"] = ([1] * 9 + [0]) * 100, ([1] * 7 + [0] * 3) * 100
    assert compare(a, b, parse_gate("goodput:10%")).verdict == "worse"
    b["samples"]["met"] = None
    with pytest.raises(UsageError, match="targets"):
        compare(a, b, parse_gate("goodput:10%"))


def test_errors_in_one_burst_prove_less_than_as_many_apart() -> None:
    """40 of 1000 failed: one stall, or a rate of 4 %?"""
    rng = np.random.default_rng(3)
    a, apart, burst = (_result(rng, 1000) for _ in range(3))
    a["samples"]["failed"] = [0] * 1000
    apart["samples"]["failed"] = ([1] + [0] * 24) * 40
    burst["samples"]["failed"] = [0] * 500 + [1] * 40 + [0] * 460
    changes = [compare(a, b, parse_gate("error_rate:3%")) for b in (apart, burst)]
    assert changes[0].b == changes[1].b == 0.04
    assert [change.verdict for change in changes] == ["worse", "cannot tell"]


def test_few_requests_without_an_error_do_not_prove_there_are_none() -> None:
    rng = np.random.default_rng(3)
    a, b = _result(rng, 40), _result(rng, 40)
    a["samples"]["failed"] = b["samples"]["failed"] = [0] * 40
    assert compare(a, b, parse_gate("error_rate:3%")).verdict == "cannot tell"


def test_without_a_gate_only_what_is_beyond_the_noise_is_named() -> None:
    rng = np.random.default_rng(4)
    a, b, worse = _result(rng, 400), _result(rng, 400), _result(rng, 400, factor=1.3)
    assert compare(a, b, None, "ttft_p50").verdict == "same"
    assert compare(a, worse, None, "ttft_p50").verdict == "worse"
    with pytest.raises(UsageError, match="no samples"):
        compare(a, b, None, "gap_p50")


def _burst(rng: np.random.Generator, count: int, seconds: float) -> dict[str, Any]:
    """All start together, as with as many users as requests."""
    result = _result(rng, count)
    e2e = rng.uniform(0.8, 1.0, size=count) * seconds * 1e3
    result["samples"] |= {"start_s": (np.arange(count) * 1e-6).tolist(), "e2e_ms": e2e.tolist(), "ttft_ms": [20.0] * count}
    result["throughput"]["output_tokens_per_s"] = 50 * count / float(e2e.max() / 1e3)
    return result


def test_throughput_of_requests_that_all_start_together() -> None:
    rng = np.random.default_rng(6)
    slow = compare(_burst(rng, 120, 1.0), _burst(rng, 120, 2.0), None, "output_tokens_per_s")
    assert slow.verdict == "worse"
    same = compare(_burst(rng, 120, 1.0), _burst(rng, 120, 1.0), None, "output_tokens_per_s")
    assert same.verdict == "same"
    few = compare(_burst(rng, 64, 1.0), _burst(rng, 64, 2.0), parse_gate("output_tokens_per_s:5%"))
    assert few.verdict == "cannot tell"


def test_no_verdict_where_the_spread_is_not_known() -> None:
    rng = np.random.default_rng(7)
    a, b = _result(rng, 200), _result(rng, 200)
    b["samples"]["num_tokens"] = [0] * 200
    change = compare(a, b, None, "output_tokens_per_s")
    assert change.verdict == "cannot tell"
    assert "nan" not in change.text
    assert "inf" not in change.text


@pytest.mark.parametrize(
    ("field", "value"), [("workload", "rag"), ("load", {"text": "closed loop, 8 users"}), ("targets", {"ttft_ms": 5.0})]
)
def test_runs_of_different_things_are_not_compared(field: str, value: Any) -> None:
    a = {"workload": "plain", "load": {"text": "closed loop, 1 users"}, "targets": {"ttft_ms": None}, "model": "m"}
    assert incomparable(a, {**a, "model": "n"}) is None
    reason = incomparable(a, {**a, field: value})
    assert reason is not None
    assert field in reason


def test_other_prompts_of_the_same_kind_are_compared() -> None:
    """A server that is still running must get a new seed, or its prefix cache answers."""
    a, b, other = ({"workload": f"plain: input {n}, output 8 tokens, seed {seed}"} for n, seed in ((9, 0), (9, 12), (8, 0)))
    assert incomparable(a, b) is None
    assert incomparable(a, other) is not None


def test_a_saturated_client_is_not_compared() -> None:
    result = _result(np.random.default_rng(5), 40)
    assert trustworthy(result) is None
    assert "saturated" in (trustworthy({**result, "audit": {"saturated": True}}) or "")
    assert trustworthy({**result, "requests": {"ok": 0}}) is not None


@pytest.mark.parametrize(
    "text", ["ttft_p99", "ttft_p99:5", "ttft_p98:5%", "speed:5%", "ttft_p99:0%", "ttft_p99:nan%", "ttft:5%", ":5%"]
)
def test_bad_gates_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--fail-if-worse"):
        parse_gate(text)
