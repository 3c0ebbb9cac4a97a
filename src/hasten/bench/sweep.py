"""Raise the load step by step until the server is saturated, and say where its knee is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hasten.bench.options import BenchOptions
from hasten.bench.plan import DEFAULT_REQUESTS
from hasten.bench.record import RequestRecord
from hasten.bench.result import SWEEP_FORMAT
from hasten.bench.session import Outcome

MIN_GAIN = 0.05  # closed loop: a doubling of users that brings less has found the top
MIN_KEPT = 0.9  # open loop: answers per request sent, in the later part of the run
MIN_GOODPUT = 0.9
MAX_ERRORS = 0.01
_LEAST_S, _MOST_S = 10.0, 120.0  # sending time of one step of a rate
_NUM_BISECTIONS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One load and what came of it; `stop` says why no higher load is tried, or is None."""

    value: float
    outcome: Outcome
    stop: str | None


def run_sweep(
    options: BenchOptions, measure: Callable[[BenchOptions], Outcome], on_step: Callable[[Step], None] = lambda step: None
) -> tuple[dict[str, Any], list[Outcome]]:
    """Double the users (or the rate) until a rule stops it; a rate is then narrowed down between the last good and first bad.

    `measure` runs one load. Returns the sweep result (points without samples) and every outcome, in order of running.
    """
    steps: list[Step] = []
    value = options.rate or 1.0 if options.sweep == "rate" else 1.0
    last = options.sweep_max or (1000.0 if options.sweep == "rate" else 256.0)
    while True:
        step = _step(options, value, measure, steps)
        steps.append(step)
        on_step(step)
        if step.stop is not None or value >= last:
            break
        value = min(2 * value, last)
    if options.sweep == "rate" and steps[-1].stop and len(steps) > 1 and not steps[-1].outcome.result["interrupted"]:
        _narrow(options, measure, steps, on_step)
    ordered = sorted(steps, key=lambda step: step.value)
    good = [step for step in ordered if step.stop is None or step.stop.startswith("throughput")]
    best = max(good, key=lambda step: _output(step.outcome), default=None)
    first = steps[0].outcome.result
    stops = [step.stop for step in steps if step.stop]
    result = {
        "format": SWEEP_FORMAT,
        **{name: first[name] for name in ("version", "started_at", "url", "model", "workload", "targets")},
        "sweep": options.sweep,
        "points": [{k: v for k, v in step.outcome.result.items() if k != "samples"} | {"stop": step.stop} for step in ordered],
        "stopped": stops[0] if stops else f"the last step asked for ({last:g}) was reached without saturation",
        "best": best.value if best else None,
        "interrupted": any(step.outcome.result["interrupted"] for step in steps),
    }
    return result, [step.outcome for step in steps]


def _step(options: BenchOptions, value: float, measure: Callable[[BenchOptions], Outcome], before: list[Step]) -> Step:
    previous = before[-1].outcome if before else None
    open_loop = options.sweep == "rate"
    outcome = measure(
        dataclasses.replace(
            options,
            sweep="off",
            rate=value if open_loop else None,
            concurrency=options.concurrency if open_loop else int(value),
            requests=_enough(options, value, previous),
            # new prompts: what a prefix cache kept of the last step must not make this one look better
            seed=options.seed + len(before),
        )
    )
    return Step(value, outcome, stop_reason(outcome, previous, open_loop=open_loop))


def _enough(options: BenchOptions, value: float, previous: Outcome | None) -> int | None:
    """Requests of a step: each user asks at least four times; a rate lasts ten seconds, and six times a usual answer."""
    if options.duration_s is not None and options.requests is None:
        return None
    if options.sweep != "rate":
        return max(options.requests or DEFAULT_REQUESTS, int(4 * value))
    answer_s = (previous.result["latency"]["e2e_ms"].get("p50") or 0.0) / 1e3 if previous else 0.0
    return max(options.requests or DEFAULT_REQUESTS, int(value * min(_MOST_S, max(_LEAST_S, 6 * answer_s))))


def stop_reason(outcome: Outcome, previous: Outcome | None, *, open_loop: bool) -> str | None:
    """Why a higher load makes no sense, or None."""
    result = outcome.result
    if result["interrupted"]:
        return "interrupted"
    if result["audit"]["saturated"]:
        return "the client is saturated"
    if not result["requests"]["ok"] or result["requests"]["error_rate"] > MAX_ERRORS:
        return f"errors: {result['requests']['error_rate']:.1%} of requests (limit {MAX_ERRORS:.0%})"
    if result["goodput"] is not None and result["goodput"]["share"] < MIN_GOODPUT:
        return f"targets: met by {result['goodput']['share']:.0%} of requests (limit {MIN_GOODPUT:.0%})"
    if open_loop:
        kept = kept_share(outcome)
        if kept < MIN_KEPT:
            return (
                f"the queue grows: {kept:.0%} as many answers as requests in the later part of the run (limit {MIN_KEPT:.0%})"
            )
    elif previous is not None and _output(outcome) < _output(previous) * (1 + MIN_GAIN):
        gain = _output(outcome) / max(1e-9, _output(previous)) - 1
        return f"throughput: {gain:+.1%} output tokens/s from twice the users (limit {MIN_GAIN:+.0%})"
    return None


def kept_share(outcome: Outcome) -> float:
    """Answers completed per request sent, over the later part of the sending time: 1 when the server keeps up.

    Both are counted in the same window, so a constant delay cancels, if the window begins when answers have begun to come;
    a queue that grows does not cancel.
    """
    records = [record for record in outcome.records if record.phase == "measured"]
    if len(records) < 3:
        return 1.0
    first_ns, end_ns = records[0].intended_ns, records[-1].intended_ns
    sending_ns = end_ns - first_ns
    answer_ns = sorted(_end_ns(record) - record.intended_ns for record in records if record.ok)
    delay_ns = answer_ns[len(answer_ns) * 9 // 10] if answer_ns else 0
    begin_ns = first_ns + min(max(sending_ns // 3, delay_ns), sending_ns * 9 // 10)
    sent = sum(begin_ns <= record.intended_ns <= end_ns for record in outcome.records)
    answered = sum(record.ok and begin_ns <= _end_ns(record) <= end_ns for record in outcome.records)
    return answered / max(1, sent)


def _end_ns(record: RequestRecord) -> int:
    return record.finish_ns or record.end_ns


def _narrow(
    options: BenchOptions, measure: Callable[[BenchOptions], Outcome], steps: list[Step], on_step: Callable[[Step], None]
) -> None:
    low, high = steps[-2].value, steps[-1].value
    for _ in range(_NUM_BISECTIONS):
        step = _step(options, (low + high) / 2, measure, steps)
        steps.append(step)
        on_step(step)
        if step.outcome.result["interrupted"]:
            return
        low, high = (step.value, high) if step.stop is None else (low, step.value)


def _output(outcome: Outcome) -> float:
    return float(outcome.result["throughput"]["output_tokens_per_s"])
