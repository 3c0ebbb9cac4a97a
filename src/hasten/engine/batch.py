"""All live requests and their scheduler: commands and step results in, token events out. One thread, no waiting."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hasten.cache.block_pool import BlockPool
from hasten.engine import ledger
from hasten.engine.live_request import LiveRequest
from hasten.request import FinishReason, RequestId, TokenEvent
from hasten.scheduler.plan import NewRequest, StepPlan, StepResult
from hasten.scheduler.policy import Policy
from hasten.scheduler.scheduler import Scheduler


@dataclass(slots=True)
class Counts:
    """Sums since start."""

    num_steps: int = 0
    num_prompt_tokens: int = 0  # of prompts computed to their end; what is computed again is not counted again
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_finished: Counter[str] = field(default_factory=Counter)
    last_step_ms: float = 0.0
    step_ms_sum: float = 0.0


def check_answer(plan: StepPlan, result: StepResult) -> None:
    """Raises ValueError if the result is not one to this plan."""
    asked = [chunk.request_id for chunk in plan.chunks]
    answered = [chunk.request_id for chunk in result.chunks]
    if result.step_id != plan.step_id or (asked != answered and not result.cancelled):
        raise ValueError(f"step {plan.step_id} asked for {asked}, the executor answered step {result.step_id} with {answered}")


class Batch:
    """Every request ends in exactly one event with a finish_reason, whatever happens to it.

    Events gather until `take_events`. Times are seconds of time.monotonic(). Under static batching an answer's tokens
    come as they are drawn, its last event when the whole batch is done; cancelled and failed requests end at once.
    """

    def __init__(self, pool: BlockPool, policy: Policy) -> None:
        self.counts = Counts()
        self._scheduler = Scheduler(pool, policy)
        self._holds_answers = policy.batching == "static"
        self._live: dict[RequestId, LiveRequest] = {}
        self._held: list[tuple[LiveRequest, TokenEvent]] = []
        self._events: list[TokenEvent] = []

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    def take_events(self) -> list[TokenEvent]:
        events, self._events = self._events, []
        return events

    def add(self, live: LiveRequest, now_s: float) -> None:
        """Queue a checked, resolved request. Ids must rise."""
        if live.needs_no_step:
            self._end(live, TokenEvent(live.request_id, finish_reason=FinishReason.LENGTH), now_s)
            return
        self._live[live.request_id] = live
        self._scheduler.add(NewRequest(live.request_id, live.request.prompt_token_ids, live.request.sampling))

    def end(self, request_id: RequestId, reason: FinishReason, now_s: float, error: str | None = None) -> None:
        """Cancel or fail a request; ignored when it is over already. A held answer is let go as it is."""
        live = self._live.pop(request_id, None)
        if live is not None:
            self._scheduler.finish(request_id)
            self._end(live, TokenEvent(request_id, finish_reason=reason, error=error), now_s)
            if self._scheduler.batch_is_over:  # it was the last one that the held answers waited for
                self._release_held(now_s)
        else:
            self._release_held(now_s, only=request_id)

    def end_all(self, reason: FinishReason, now_s: float, error: str | None = None) -> None:
        for request_id in list(self._live):
            self.end(request_id, reason, now_s, error)
        self._release_held(now_s)

    def plan(self, now_s: float) -> StepPlan:
        """The next step. Needs has_work."""
        schedule = self._scheduler.schedule()
        for request_id in schedule.preempted:
            self._live[request_id].preempted(now_s)
        self.counts.num_preemptions += len(schedule.preempted)
        for chunk in schedule.plan.chunks:
            self._live[chunk.request_id].scheduled(schedule.plan.step_id, now_s)
        return schedule.plan

    def apply(self, plan: StepPlan, result: StepResult, now_s: float) -> None:
        """Take in a step's result; requests that ended meanwhile are passed over. A cancelled step counts for nothing."""
        if not result.cancelled:
            self._apply_chunks(plan, result, now_s)
        self.counts.num_steps += 1
        self.counts.last_step_ms = result.compute_ms
        self.counts.step_ms_sum += result.compute_ms
        if self._scheduler.batch_is_over:
            self._release_held(now_s)

    def fail(self, plan: StepPlan, error: str, now_s: float) -> None:
        """The step could not run: its requests fail, the others stay."""
        self._scheduler.tell_again(plan.finished)
        for chunk in plan.chunks:
            self.end(chunk.request_id, FinishReason.ERROR, now_s, error)

    def check(self) -> None:
        """Debug: pool, tables and live requests agree. Raises AssertionError."""
        self._scheduler.check()
        if len(self._live) != self.num_running + self.num_waiting:
            raise AssertionError(f"{len(self._live)} requests live, {self.num_running} run, {self.num_waiting} wait")
        if self._held and self._scheduler.batch_is_over:
            raise AssertionError("answers are held though their batch is over")

    def _apply_chunks(self, plan: StepPlan, result: StepResult, now_s: float) -> None:
        shared = len(plan.chunks) > 1
        for chunk, chunk_result in zip(plan.chunks, result.chunks, strict=True):
            live = self._live.get(chunk.request_id)
            if live is None:
                continue
            event = live.accept(chunk, chunk_result, step_id=plan.step_id, now_s=now_s, shared=shared)
            self._scheduler.advance(chunk, len(event.token_ids))
            self.counts.num_generated_tokens += len(event.token_ids)
            if not live.prompt_is_counted and chunk.start + chunk.num_tokens >= live.num_prompt_tokens:
                live.prompt_is_counted = True
                self.counts.num_prompt_tokens += live.num_prompt_tokens
            if event.finish_reason is None:
                self._tell(event)
                continue
            del self._live[chunk.request_id]
            self._scheduler.finish(chunk.request_id)
            if self._holds_answers and event.finish_reason is not FinishReason.ERROR:
                live.timeline.enter(ledger.HELD, now_s)
                self._tell(replace(event, finish_reason=None))
                self._held.append((live, replace(event, token_ids=(), logprobs=(), prompt_logprobs=())))
            else:
                self._end(live, event, now_s)

    def _tell(self, event: TokenEvent) -> None:
        if event.token_ids or event.prompt_logprobs:
            self._events.append(event)

    def _end(self, live: LiveRequest, event: TokenEvent, now_s: float) -> None:
        assert event.finish_reason is not None
        self.counts.num_finished[event.finish_reason.value] += 1
        self._events.append(replace(event, ledger=live.finish(now_s)))

    def _release_held(self, now_s: float, *, only: RequestId | None = None) -> None:
        """End held answers: that of `only`, or all."""
        held, self._held = self._held, []
        for live, event in held:
            if only is None or live.request_id == only:
                self._end(live, event, now_s)
            else:
                self._held.append((live, event))
