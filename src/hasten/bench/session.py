"""A bench run from plan to result: the load, then the numbers and what they are worth."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from hasten import __version__, exit_codes
from hasten.bench.arrivals import arrival_offsets
from hasten.bench.audit import Monitor, audit
from hasten.bench.client import BenchClient
from hasten.bench.cost import token_cost
from hasten.bench.metrics import Window, summarize
from hasten.bench.open_files import allow_connections
from hasten.bench.options import BenchOptions
from hasten.bench.plan import Plan, Progress, base_url, make_plan
from hasten.bench.record import RequestRecord
from hasten.bench.request_metrics import Targets
from hasten.bench.result import FORMAT
from hasten.bench.runner import LoadRun, Runner
from hasten.bench.tokens import WordCounter

Watcher = Callable[[LoadRun, Monitor], None]
T = TypeVar("T")


async def drive(plan: Plan, options: BenchOptions, watcher: Watcher | None = None) -> tuple[LoadRun, Monitor]:
    """Send the load and keep the records. Ctrl-C ends it with what there is."""
    client = BenchClient(plan.endpoint, plan.client, max_connections=allow_connections(options.max_connections))
    runner = Runner(client, plan.limits)
    jobs = itertools.cycle(plan.jobs) if plan.repeats else iter(plan.jobs)
    loop = asyncio.get_running_loop()
    with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread: the caller handles Ctrl-C
        loop.add_signal_handler(signal.SIGINT, runner.request_stop)
    # a full collection over the records of a long run takes tens of milliseconds, in which every arrival is stamped late
    gc.collect()
    gc.freeze()
    gc.disable()
    watching: asyncio.Task[None] | None = None
    try:
        async with Monitor() as monitor:
            if watcher is not None:
                watching = asyncio.ensure_future(_watch(watcher, runner.run, monitor))
            if plan.offsets is not None:
                run = await runner.open_loop(zip(plan.offsets, jobs, strict=False))
            elif options.rate is not None:
                offsets = arrival_offsets(options.arrivals, options.rate, seed=options.seed, burst_size=options.burst_size)
                run = await runner.open_loop(zip(offsets, jobs, strict=False))
            else:
                run = await runner.closed_loop(jobs, options.concurrency)
    finally:
        gc.enable()
        gc.unfreeze()
        if watching is not None:
            watching.cancel()
        await client.close()
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
    return run, monitor


async def _watch(watcher: Watcher, run: LoadRun, monitor: Monitor) -> None:
    while True:
        await asyncio.sleep(1.0)
        # in a thread: drawing a table takes milliseconds, which arrivals would wait for
        await asyncio.to_thread(watcher, run, monitor)


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop, with a switch interval that keeps other threads from holding up arrivals by 5 ms."""
    import uvloop

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    finally:
        sys.setswitchinterval(interval_s)


@dataclass(slots=True)
class Outcome:
    """A result and the raw records it was made from."""

    result: dict[str, Any]
    header: dict[str, Any]
    records: list[RequestRecord]

    @property
    def exit_code(self) -> int:
        """130 interrupted, 1 when the client was saturated or nothing was answered, else 0."""
        if self.result["interrupted"]:
            return exit_codes.INTERRUPTED
        failed = self.result["audit"].get("saturated") or not self.result["requests"]["ok"]
        return exit_codes.FAILED if failed else exit_codes.DONE


def run_bench(
    url: str, options: BenchOptions, watcher: Watcher | None = None, progress: Progress = lambda done, total: None
) -> Outcome:
    """One load, measured. `progress` is told how many prompts are made. Raises UsageError, BadFile."""
    plan = make_plan(url, options, progress)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    run, monitor = run_loop(drive(plan, options, watcher))
    _count_missing(run.records, plan)
    header = {
        "version": __version__,
        "started_at": started_at,
        "url": base_url(plan.endpoint),
        "model": plan.client.model,
        "workload": plan.workload,
        "load": plan.load,
        "targets": {"ttft_ms": options.ttft_ms, "tpot_ms": options.tpot_ms, "e2e_ms": options.e2e_ms},
        "price_per_hour": options.price_per_hour,
        "currency": options.currency,
        "window": _window(run, options),
        "interrupted": run.interrupted,
        "audit": audit(monitor, run.records, open_loop=plan.load["kind"] != "closed loop"),
        "notes": plan.notes + _notes(run, plan, options),
    }
    return Outcome(make_result(header, run.records), header, run.records)


def make_result(header: dict[str, Any], records: Sequence[RequestRecord]) -> dict[str, Any]:
    """The result of raw records; `header` is the first line of their JSONL file."""
    window = header.get("window")
    summary = summarize(records, Targets(**header["targets"]), Window(*window) if window else None)
    facts = {name: value for name, value in header.items() if name not in ("format", "window", "price_per_hour", "currency")}
    price = header.get("price_per_hour")
    cost = token_cost(price, summary, currency=header["currency"]) if price else None
    return {"format": FORMAT, **facts, **summary, "cost": cost}


def _window(run: LoadRun, options: BenchOptions) -> tuple[int, int] | None:
    """With a duration, throughput is that of the time in which requests were sent: no thin end."""
    if options.duration_s is None or run.interrupted or not run.measured_start_ns:
        return None
    end_ns = min(run.launch_end_ns, run.measured_start_ns + int(options.duration_s * 1e9))
    return (run.measured_start_ns, end_ns) if end_ns > run.measured_start_ns else None


def _notes(run: LoadRun, plan: Plan, options: BenchOptions) -> list[str]:
    notes = []
    if (num_allowed := allow_connections(options.max_connections)) < options.max_connections:
        notes.append(
            f"at most {num_allowed} connections at a time instead of {options.max_connections}: this process may have no more "
            "files open (ulimit -Hn); a request that waited for one counts that time"
        )
    if run.num_not_sent:
        notes.append(f"{run.num_not_sent} turns of conversations were not sent, because an earlier one had no answer")
    num_requests = sum(len(job.turns) for job in plan.jobs)
    if plan.repeats and run.num_launched > num_requests:
        notes.append(f"prompts repeat after {num_requests} requests: a prefix cache answers the later ones sooner (--prompts)")
    return notes


def _count_missing(records: Sequence[RequestRecord], plan: Plan) -> None:
    """Count answers without usage, where there is a tokenizer; then forget the texts: raw files hold no answers."""
    counter = None if isinstance(plan.counter, WordCounter) else plan.counter
    for record in records:
        if counter is not None and record.ok and record.completion_tokens is None and record.text:
            record.counted_tokens = counter.count(record.text)
        record.text = None
    if counter is not None:
        counter.close()


def elapsed_s(run: LoadRun) -> float:
    return (time.perf_counter_ns() - run.start_ns) / 1e9 if run.start_ns else 0.0
