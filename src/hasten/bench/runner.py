"""Load shapes: who sends when. Every latency counts from the intended time, whether the client kept it or not."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hasten.bench.client import BenchClient
from hasten.bench.record import RequestRecord
from hasten.bench.timer import PreciseTimer
from hasten.bench.trace import Job, TraceRequest


@dataclass(slots=True)
class LoadRun:
    """One run: its records, and where its parts begin and end (perf_counter_ns; 0: not yet)."""

    records: list[RequestRecord] = field(default_factory=list)
    start_ns: int = 0
    measured_start_ns: int = 0  # intended time of the first request that is no warm-up
    launch_end_ns: int = 0
    num_in_flight: int = 0
    num_launched: int = 0
    num_errors: int = 0
    num_not_sent: int = 0  # turns of conversations after one that failed
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """When to launch no more. Warm-up requests come first and are counted apart from both limits."""

    max_requests: int | None = None
    duration_s: float | None = None
    num_warmup: int = 0


@dataclass(frozen=True, slots=True)
class _Ready:
    """A request as it goes to the socket: encoded before its time comes, so that our work is in no latency."""

    request: TraceRequest
    id: str
    payload: bytes


class Runner:
    """Sends jobs through a client and keeps the records. One run per Runner; made inside a running loop."""

    def __init__(self, client: BenchClient, limits: Limits) -> None:
        self.run = LoadRun()
        self._client = client
        self._limits = limits
        self._timer = PreciseTimer()
        self._stop_asked = False
        self._num_encoded = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run_id = secrets.token_hex(4)  # servers want ids that no other client and no other run has

    def request_stop(self) -> None:
        """Launch nothing more, cancel what is in flight, and end with what there is."""
        self._stop_asked = True
        self._timer.release()
        self._end()

    async def closed_loop(self, jobs: Iterator[Job], concurrency: int) -> LoadRun:
        """`concurrency` users, each sending its next request when its last answer is complete."""
        self.run.start_ns = time.perf_counter_ns()
        for _ in range(concurrency):
            self._spawn(self._user(jobs))
        return await self._finish()

    async def open_loop(self, timed_jobs: Iterator[tuple[float, Job]]) -> LoadRun:
        """Each job starts at its own offset in seconds, however many are still unanswered."""
        # 20 ms ahead: the first requests must not be late because the run is being set up
        self.run.start_ns = time.perf_counter_ns() + 20_000_000
        for offset_s, job in timed_jobs:
            when_ns = self.run.start_ns + int(offset_s * 1e9)
            first = self._encode(job.turns[0])
            if when_ns > time.perf_counter_ns():
                await self._timer.wait_until(when_ns)
            else:
                await asyncio.sleep(0)  # late already: still let answers in
            if not self._may_launch(when_ns):
                break
            self._spawn(self._job(job, when_ns, first))
            await asyncio.sleep(0)  # send before the next one is encoded
        self._launching_ended()
        return await self._finish()

    def _may_launch(self, when_ns: int) -> bool:
        run, limits = self.run, self._limits
        if self._stop_asked or self._ended.done():
            return False
        if limits.max_requests is not None and run.num_launched >= limits.max_requests + limits.num_warmup:
            return False
        if limits.duration_s is None or not run.measured_start_ns:
            return True
        return when_ns < run.measured_start_ns + int(limits.duration_s * 1e9)

    async def _user(self, jobs: Iterator[Job]) -> None:
        while self._may_launch(time.perf_counter_ns()):
            job = next(jobs, None)
            if job is None:
                break
            await self._job(job, None)
        self._launching_ended()

    async def _job(self, job: Job, when_ns: int | None, first: _Ready | None = None) -> None:
        """Run the turns in order. `when_ns`: intended time of the first; None: as soon as it is ready."""
        history: list[dict[str, Any]] = []
        for turn, request in enumerate(job.turns):
            if job.carry_answers:
                history.extend(request.messages or ())
                request = msgspec.structs.replace(request, messages=list(history))
            ready = first if first is not None and not turn else self._encode(request)
            if turn:
                when_ns = await self._wait_for_turn(job, turn, when_ns)
                if not self._may_launch(time.perf_counter_ns()):
                    return
            record = await self._send(ready, turn, when_ns)
            if not record.ok and job.carry_answers:
                self.run.num_not_sent += len(job.turns) - turn - 1
                return  # a conversation cannot go on without its answer
            history.append({"role": "assistant", "content": record.text or ""})

    def _encode(self, request: TraceRequest) -> _Ready:
        request_id = f"{self._run_id}-{self._num_encoded}"
        self._num_encoded += 1
        return _Ready(request, request_id, self._client.encode(request, request_id))

    async def _wait_for_turn(self, job: Job, turn: int, when_ns: int | None) -> int | None:
        """A turn comes at its own `t`, but never before the last answer plus the thinking time."""
        earliest_ns = time.perf_counter_ns() + int(max(job.think_s, job.turns[turn].think_s) * 1e9)
        turn_t = job.turns[turn].t
        if when_ns is not None and turn_t is not None:
            earliest_ns = max(earliest_ns, self.run.start_ns + int(turn_t * 1e9))
        await self._timer.wait_until(earliest_ns)
        return None if when_ns is None else earliest_ns

    async def _send(self, ready: _Ready, turn: int, when_ns: int | None) -> RequestRecord:
        """`when_ns`: intended time; None: now."""
        run, request = self.run, ready.request
        intended_ns = when_ns or time.perf_counter_ns()
        warm = run.num_launched < self._limits.num_warmup
        run.num_launched += 1
        if not warm and not run.measured_start_ns:
            run.measured_start_ns = intended_ns
        record = RequestRecord(
            id=ready.id,
            source=request.id,
            phase="warmup" if warm else "measured",
            session=request.session,
            turn=turn,
            intended_ns=intended_ns,
            asked_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
        )
        run.records.append(record)
        run.num_in_flight += 1
        try:
            await self._client.send(ready.payload, record)
        finally:
            run.num_in_flight -= 1
            run.num_errors += not record.ok
        return record

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._one_ended)

    def _one_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._end(failure)  # a bug of ours: what servers do wrong ends in records
        elif not self._tasks and self.run.launch_end_ns:
            self._end()

    def _end(self, failure: BaseException | None = None) -> None:
        if self._ended.done():
            return
        if failure is not None:
            self._ended.set_exception(failure)
        else:
            self._ended.set_result(None)

    def _launching_ended(self) -> None:
        if not self.run.launch_end_ns:
            self.run.launch_end_ns = time.perf_counter_ns()

    async def _finish(self) -> LoadRun:
        """Wait for what is in flight; when asked to stop, cancel it and keep what there is."""
        try:
            if self._tasks:
                await self._ended
            elif self._ended.done():
                self._ended.result()
        finally:
            self.run.interrupted = self._stop_asked
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._launching_ended()
            self._timer.close()
        return self.run
