"""The gate: noise passes, planted regressions do not, and too few requests are said to be too few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hasten.bench.compare import Change, compare, incomparable, parse_gate, trustworthy
from hasten.errors import UsageError

PAIRS = 20


def _result(rng: np.random.Generator, count: int, *, factor: float = 1.0, sigma: float = 0.1) -> dict[str, Any]:
    """A run with log-normal latencies, slightly correlated in time as on a shared machine."""
    drift = np.repeat(rng.normal(0, sigma / 10, size=count // 10 + 1), 10)[:count]
    ttft = 200.0 * factor * np.exp(rng.normal(0, sigma, size=count) + drift)
    tpot = 20.0 * factor * np.exp(rng.normal(0, sigma / 4, size=count))
    start = np.cumsum(rng.exponential(0.1 * factor, size=count))
    e2e = ttft + 50 * tpot
    return {
        "url": "x",
        "audit": {"saturated": False},
        "requests": {"ok": count, "measured": count, "errors": 0},
        "goodput": {"share": 0.9},
        "throughput": {"output_tokens_per_s": 50 * count / float(start[-1])},
        "samples": {
            "start_s": start.tolist(),
            "num_tokens": [50] * count,
            "ttft_ms": ttft.tolist(),
            "tpot_ms": tpot.tolist(),
            "e2e_ms": e2e.tolist(),
            "itl_ms": [[float(value)] * 3 for value in tpot],
            "chunk_gap_ms": [[]] * count,
        },
    }


def _asked_size(gate: str, sigma: float) -> int:
    """Start far too small and give it what it asks for until it is content, as a user would."""
    rng = np.random.default_rng(1)
    count = 100
    while True:
        change = compare(_result(rng, count, sigma=sigma), _result(rng, count, sigma=sigma), parse_gate(gate))
        assert change.needed is not None
        if change.needed <= count:
            return count
        assert change.verdict != "cannot tell" or f"{change.needed:,} a side" in change.text
        assert change.needed < 100_000
        count = change.needed


@pytest.mark.parametrize(("gate", "sigma"), [("ttft_p50:5%", 0.15), ("ttft_p99:5%", 0.05), ("e2e_mean:2%", 0.1)])
def test_the_gate_at_the_size_it_asks_for(gate: str, sigma: float) -> None:
    count = _asked_size(gate, sigma)
    factor = 1 + parse_gate(gate).threshold
    rng = np.random.default_rng(2)
    noise = [
        compare(_result(rng, count, sigma=sigma), _result(rng, count, sigma=sigma), parse_gate(gate)) for _ in range(PAIRS)
    ]
    planted = [
        compare(_result(rng, count, sigma=sigma), _result(rng, count, sigma=sigma, factor=factor), parse_gate(gate))
        for _ in range(PAIRS)
    ]
    assert sum(change.verdict == "worse" for change in noise) <= 1
    assert sum(change.verdict == "worse" for change in planted) >= 19


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
    b["requests"]["errors"] = 40
    assert compare(a, b, parse_gate("error_rate:3%")).verdict == "worse"
    b["requests"]["errors"] = 1
    assert compare(a, b, parse_gate("error_rate:3%")).verdict == "same"
    b["goodput"]["share"] = 0.7
    assert compare(a, b, parse_gate("goodput:10%")).verdict == "worse"
    b["goodput"] = None
    with pytest.raises(UsageError, match="targets"):
        compare(a, b, parse_gate("goodput:10%"))


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
