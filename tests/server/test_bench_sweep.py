"""Sweeps: when they stop, and what a step is."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from hasten.bench.options import BenchOptions
from hasten.bench.record import RequestRecord
from hasten.bench.session import Outcome, run_bench
from hasten.bench.sweep import kept_share, run_sweep
from hasten.errors import UsageError
from tests.support.fake_server import FakeServer


def test_a_sweep_stops_when_more_users_bring_nothing() -> None:
    with FakeServer(tokens=4, first_ms=30, gap_ms=10, workers=2) as server:
        options = BenchOptions(sweep="concurrency", requests=12, input_tokens="8", warmup=0, approximate_lengths=True)
        result, outcomes = run_sweep(options, lambda load: run_bench(server.url, load))
    assert [point["load"]["value"] for point in result["points"]][:3] == [1, 2, 4]
    assert len(outcomes) <= 4
    assert result["stopped"].startswith("throughput")
    assert result["best"] >= 2


def test_a_rate_sweep_stops_when_the_queue_grows() -> None:
    # one worker and 20 ms an answer: 50 requests a second at most, fewer on a busy machine
    with FakeServer(tokens=2, first_ms=16, gap_ms=4, workers=1) as server:
        options = BenchOptions(
            sweep="rate", rate=15.0, arrivals="constant", duration_s=1.0, input_tokens="8", warmup=0, approximate_lengths=True
        )
        result, _ = run_sweep(options, lambda load: run_bench(server.url, load))
    assert result["stopped"].startswith("the queue grows")
    assert 15.0 <= result["best"] <= 55.0
    assert 5 <= len(result["points"]) <= 6  # doubling, then three steps in between


def test_targets_stop_a_sweep() -> None:
    with FakeServer(tokens=2, first_ms=40, gap_ms=5, workers=2) as server:
        options = BenchOptions(
            sweep="concurrency", requests=16, input_tokens="8", warmup=0, approximate_lengths=True, ttft_ms=75.0
        )
        result, _ = run_sweep(options, lambda load: run_bench(server.url, load))
    assert result["stopped"].startswith("targets")
    assert result["best"] in (1, 2)


def made_up(options: BenchOptions, *, answer_s: float, served_per_s: float = np.inf) -> Outcome:
    """What a server with a constant answer time gives; with `served_per_s` answers leave no faster than that."""
    assert options.requests is not None
    rate = options.rate or options.concurrency / answer_s
    sent_s = np.cumsum(np.random.default_rng(options.seed).exponential(1 / rate, size=options.requests))
    ends, free = [], 0.0
    for time_s in sent_s:
        free = max(free, time_s) + 1 / served_per_s
        ends.append(free + answer_s)
    records = [
        RequestRecord(id=str(i), intended_ns=int(a * 1e9), chunk_ns=[int(b * 1e9)], finish_ns=int(b * 1e9))
        for i, (a, b) in enumerate(zip(sent_s, ends, strict=True))
    ]
    waits = np.asarray(ends) - sent_s
    result: dict[str, Any] = {
        "interrupted": False,
        "audit": {"saturated": False},
        "requests": {"ok": len(records), "error_rate": 0.0},
        "goodput": None,
        "latency": {"e2e_ms": {"p50": float(np.median(waits)) * 1e3}},
        "throughput": {"output_tokens_per_s": len(records) / max(ends)},
        **dict.fromkeys(("version", "started_at", "url", "model", "workload", "targets"), ""),
    }
    return Outcome(result, {}, records)


@pytest.mark.parametrize("answer_s", [0.1, 3.0, 5.0, 9.0])
def test_a_constant_delay_is_no_queue(answer_s: float) -> None:
    asked: list[BenchOptions] = []

    def measure(options: BenchOptions) -> Outcome:
        asked.append(options)
        return made_up(options, answer_s=answer_s)

    result, _ = run_sweep(BenchOptions(sweep="rate", rate=5.0, sweep_max=80.0), measure)
    assert "without saturation" in result["stopped"]
    assert [options.rate for options in asked] == [5, 10, 20, 40, 80]
    assert len({options.seed for options in asked}) == len(asked), "every step has prompts of its own"
    assert all(options.requests >= options.rate * 6 * answer_s for options in asked[1:] if options.requests and options.rate)


@pytest.mark.parametrize("answer_s", [0.1, 3.0, 5.0, 9.0])
def test_a_queue_is_seen_whatever_the_delay(answer_s: float) -> None:
    result, outcomes = run_sweep(
        BenchOptions(sweep="rate", rate=5.0), lambda options: made_up(options, answer_s=answer_s, served_per_s=30.0)
    )
    assert result["stopped"].startswith("the queue grows")
    assert 20 <= result["best"] <= 36
    assert kept_share(outcomes[3]) < 0.9


def test_the_last_step_is_the_one_asked_for() -> None:
    options = BenchOptions(sweep="concurrency", sweep_max=6.0)
    result, _ = run_sweep(options, lambda load: made_up(dataclasses.replace(load, rate=None), answer_s=0.1))
    assert [round(outcome) for outcome in (result["best"],)] == [6]
    assert "(6)" in result["stopped"]


@pytest.mark.parametrize(
    "options", [{"sweep": "rate", "rate": 10.0, "sweep_max": 5.0}, {"sweep": "concurrency", "sweep_max": 0.5}]
)
def test_a_last_step_below_the_first_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="below the first step"):
        BenchOptions(**options).check()
