"""The engine's thread: plan a step, submit it, deliver the last one's tokens while it computes, apply its result."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hasten.cache.block_pool import BlockPool
from hasten.config import EngineConfig
from hasten.engine.admission import Limits, resolve_sampling
from hasten.engine.batch import Batch, check_answer
from hasten.engine.executor import Executor, ExecutorInfo, StepHandle
from hasten.engine.live_request import LiveRequest
from hasten.engine.stats import EngineStats
from hasten.errors import EngineStopped
from hasten.request import EngineRequest, FinishReason, RequestId, SamplingParams, TokenEvent
from hasten.scheduler.plan import StepPlan
from hasten.scheduler.policy import Policy

Listener = Callable[[Sequence[TokenEvent]], None]

# a thread that holds the GIL gives it up after this; the default of 5 ms would stretch a 3 ms step beside a busy thread
SWITCH_INTERVAL_S = 1e-4
# steps in a row that may fail before the engine believes that none will run again
MAX_FAILED_STEPS = 3

# a step that takes longer is logged: seconds for a few hundred tokens mean that the compute threads get no CPU time
SLOW_STEP_S = 10.0

_log = logging.getLogger(__name__)


class _RunningStep:
    """The step that computes now, and which of its requests somebody still waits for."""

    def __init__(self, handle: StepHandle, request_ids: set[RequestId]) -> None:
        self._handle = handle
        self._wanted = request_ids

    def forget(self, request_id: RequestId) -> None:
        """Its request was cancelled; the last one takes the step with it."""
        if request_id in self._wanted:
            self._wanted.discard(request_id)
            if not self._wanted:
                self._handle.cancel()


class Engine:
    """Runs requests on an executor. `submit`, `cancel`, `snapshot`, `drain` and `stop` may be called from any thread.

    `listener` gets all events of a step in one call, on the engine's thread; it must return soon and not raise.

    Args:
        executor: used by the engine's thread only, closed by whoever made it.
        debug: check pool and tables after every step.
    """

    def __init__(self, executor: Executor, config: EngineConfig, *, debug: bool = False) -> None:
        info = executor.info
        self._executor = executor
        self._debug = debug
        self._pool = BlockPool(info.num_blocks, info.block_size)
        max_num_batched_tokens = min(config.max_num_batched_tokens, info.max_num_batched_tokens)
        self._batch = Batch(self._pool, Policy(max_num_batched_tokens, config.max_num_seqs, config.chunk, config.batching))
        self.limits = Limits.of(info)
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._failed_steps = 0
        self._checked_prompt: tuple[int, ...] | None = None  # by identity; any thread may set it
        # everything below is shared between threads and guarded by _changed
        self._changed = threading.Condition()
        self._inbox: list[LiveRequest | RequestId] = []  # requests, and ids to cancel
        self._open: set[RequestId] = set()  # submitted, last event not yet delivered
        self._running: _RunningStep | None = None
        self._next_id: RequestId = 1
        self._closed_because: str | None = None  # no more requests
        self._failed_because: str | None = None
        self._stopping = False

    @property
    def info(self) -> ExecutorInfo:
        return self._executor.info

    def start(self, listener: Listener) -> None:
        """Start the thread. Raises RuntimeError if it was started before."""
        if self._thread is not None:
            raise RuntimeError("the engine was started before")
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._listener = listener
        self._thread = threading.Thread(target=self._run, name="hasten-engine", daemon=True)
        self._thread.start()

    def resolve(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """`params` with seed and max_tokens settled for a prompt of that length."""
        return resolve_sampling(params, num_prompt_tokens=num_prompt_tokens, limits=self.limits)

    def submit(self, request: EngineRequest) -> RequestId:
        """Queue a request. Raises InvalidRequest, PromptTooLong or EngineStopped; then it was never queued."""
        self._check_prompt(request.prompt_token_ids)
        self.limits.check_sampling(request.sampling)
        request = replace(request, sampling=self.resolve(request.sampling, len(request.prompt_token_ids)))
        with self._changed:
            if self._closed_because is not None:
                raise EngineStopped(self._closed_because)
            # made here, on the caller's thread: what is wrong with a request must not meet the engine's
            live = LiveRequest(self._next_id, request, request.arrival_s or time.monotonic())
            self._next_id += 1
            self._open.add(live.request_id)
            self._inbox.append(live)
            self._changed.notify_all()
        return live.request_id

    def _check_prompt(self, token_ids: tuple[int, ...]) -> None:
        """The choices of one request share a prompt: 100,000 ids, 128 times over, would take a second."""
        if token_ids is not self._checked_prompt:
            self.limits.check_prompt(token_ids)
            if type(token_ids) is tuple:  # a list could be another one by now
                self._checked_prompt = token_ids

    def cancel(self, request_id: RequestId) -> None:
        """End a request with CANCELLED, at the latest when the running step ends. Unknown and finished ids are ignored.

        A step whose requests are all cancelled is stopped at the next phase border.
        """
        with self._changed:
            if request_id in self._open:
                self._inbox.append(request_id)
                if self._running is not None:
                    self._running.forget(request_id)
                self._changed.notify_all()

    def snapshot(self) -> EngineStats:
        counts = self._batch.counts
        with self._changed:
            num_open = len(self._open)
            num_arrived = sum(isinstance(command, LiveRequest) for command in self._inbox)  # since the running step began
        return EngineStats(
            num_open=num_open,
            num_running=self._batch.num_running,
            num_waiting=self._batch.num_waiting + num_arrived,
            num_free_blocks=self._pool.num_free,
            num_blocks=self._pool.num_blocks,
            num_steps=counts.num_steps,
            num_prompt_tokens=counts.num_prompt_tokens,
            num_generated_tokens=counts.num_generated_tokens,
            num_preemptions=counts.num_preemptions,
            num_finished={reason.value: counts.num_finished[reason.value] for reason in FinishReason},
            last_step_ms=counts.last_step_ms,
            step_ms_sum=counts.step_ms_sum,
            failed=self._failed_because,
        )

    def drain(self, grace_s: float) -> bool:
        """Take no more requests and wait for the open ones; after `grace_s` seconds cancel the rest.

        True if none had to be cancelled. The engine stays closed after it, and its thread lives until `stop`.
        An engine that was never started has nobody to wait for: False if there are requests.
        """
        with self._changed:
            self._closed_because = self._closed_because or "the server is shutting down and takes no more requests"
            if self._thread is None:
                return not self._open
            if self._changed.wait_for(lambda: not self._open, timeout=grace_s):
                return True
            left = tuple(self._open)
        for request_id in left:
            self.cancel(request_id)
        with self._changed:
            self._changed.wait_for(lambda: not self._open)
        return False

    def stop(self) -> None:
        """Cancel what is open, deliver the last events, end the thread. Idempotent; not for the engine's own thread."""
        with self._changed:
            self._closed_because = self._closed_because or "the engine was stopped"
            left = tuple(self._open)
        for request_id in left:
            self.cancel(request_id)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._obey(wait=not self._batch.has_work):
                if self._batch.has_work:
                    self._step()
                if not self._batch.has_work:
                    self._idle()
        except Exception as error:  # our own bug: say so to everyone who waits, and take no more
            _log.exception("the engine failed")
            self._give_up(f"the engine failed: {type(error).__name__}: {error}")

    def _idle(self) -> None:
        self._deliver(self._batch.take_events())
        if self._debug:
            self._batch.check()

    def _step(self) -> None:
        started_s = time.monotonic()
        plan = self._batch.plan(started_s)
        try:
            handle = self._executor.submit(plan)
            with self._changed:
                self._running = _RunningStep(handle, {chunk.request_id for chunk in plan.chunks})
                for command in self._inbox:
                    if isinstance(command, int):  # cancelled after the inbox was read for this plan
                        self._running.forget(command)
            self._deliver(self._batch.take_events())  # the GIL is free while the step computes
            result = handle.result()
            check_answer(plan, result)
        except Exception as error:
            self._fail(plan, error)
            return
        finally:
            with self._changed:
                self._running = None
        self._obey(wait=False)  # who was cancelled meanwhile gets no more tokens
        self._batch.apply(plan, result, time.monotonic())
        self._failed_steps = 0
        self._log_slow(plan, time.monotonic() - started_s)
        if self._debug:
            self._batch.check()

    def _log_slow(self, plan: StepPlan, seconds: float) -> None:
        if seconds > SLOW_STEP_S:
            counts = f"{len(plan.chunks)} requests, {plan.num_tokens} tokens; {len(self._open)} requests are open"
            _log.warning("step %d took %.1f s: %s; has this machine CPU time to spare?", plan.step_id, seconds, counts)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        """A step could not run. Its requests fail; the engine goes on unless this happens again and again."""
        _log.error("step %d failed", plan.step_id, exc_info=error)
        message = f"step {plan.step_id} failed: {type(error).__name__}: {error}"
        self._batch.fail(plan, message, time.monotonic())
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            self._give_up(f"the engine stopped after {self._failed_steps} failed steps in a row, the last: {message}")

    def _give_up(self, reason: str) -> None:
        """Fail everything that is open or still arrives; `submit` refuses from here on."""
        with self._changed:
            self._closed_because = self._failed_because = reason
        try:
            self._obey(wait=False)
            self._batch.end_all(FinishReason.ERROR, time.monotonic(), reason)
        except Exception:
            _log.exception("the engine's books are damaged")
        self._deliver(self._batch.take_events())
        # whoever the books have lost still gets an end
        self._deliver([TokenEvent(lost, finish_reason=FinishReason.ERROR, error=reason) for lost in sorted(self._open)])

    def _obey(self, *, wait: bool) -> bool:
        """Carry out the commands that have come; with `wait`, sleep until there is one. False: time to stop."""
        with self._changed:
            while wait and not self._inbox and not self._stopping:
                self._changed.wait()
            commands, self._inbox = self._inbox, []
            stop = self._stopping and not commands and not self._batch.has_work
        now_s = time.monotonic()
        for command in commands:
            if isinstance(command, LiveRequest):
                self._batch.add(command, now_s)
            else:
                self._batch.end(command, FinishReason.CANCELLED, now_s)
        return not stop

    def _deliver(self, events: Sequence[TokenEvent]) -> None:
        """Hand events to the listener, in one call."""
        if not events:
            return
        assert self._listener is not None
        try:
            self._listener(events)
        except Exception:  # a listener's bug must not take the other requests with it
            _log.exception("the listener failed")
        with self._changed:
            self._open.difference_update(event.request_id for event in events if event.finish_reason is not None)
            if not self._open:
                self._changed.notify_all()
