"""A naive executor that needs no model: an oracle for what the engine plans, and a source of answers written in advance.

It keeps what every KV block holds, and reads a request's context back through its block table, so that a wrong table, a
lost or overwritten block, a gap between chunks or a chunk too many is an error at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hasten.engine.executor import ExecutorInfo
from hasten.request import RequestId, SamplingParams, TokenLogprobs
from hasten.scheduler.plan import ChunkResult, NewRequest, ScheduledChunk, StepPlan, StepResult

HOLD_S = 60.0  # far more than a cancel takes, and longer than any test waits for it


class BadPlan(AssertionError):  # noqa: N818
    """The plan contradicts itself or what was planned before."""


def fold(value: int, token_id: int) -> int:
    """A number that depends on every token of a context and on their order."""
    return (value * 31 + token_id + 7) % 1_000_003


def made_up_token(value: int, vocab_size: int) -> int:
    """The next token after a context that folds to `value`; never 0, 1 or 2."""
    return 3 + value % (vocab_size - 3)


def made_up_answer(prompt: Sequence[int], num_tokens: int, vocab_size: int) -> list[int]:
    """What ScriptedExecutor answers without a script: the oracle, which knows of no blocks, chunks or steps."""
    value, answer = 0, list[int]()
    for token_id in prompt:
        value = fold(value, token_id)
    for _ in range(num_tokens):
        answer.append(made_up_token(value, vocab_size))
        value = fold(value, answer[-1])
    return answer


@dataclass
class _Block:
    """What a block of the store holds: tokens `index` × block_size … of one request, as the folds up to each."""

    request_id: RequestId
    index: int
    folds: list[int]


@dataclass
class _Known:
    """What the executor keeps of one request."""

    new: NewRequest
    tokens: list[int]
    script: Sequence[int] | None
    table: list[int] = field(default_factory=list)
    num_computed: int = 0

    @property
    def num_drawn(self) -> int:
        return len(self.tokens) - len(self.new.prompt_token_ids)


class ScriptedHandle:
    def __init__(self, run: Callable[[], StepResult], cancelled: threading.Event) -> None:
        self._run = run
        self._cancelled = cancelled

    def result(self) -> StepResult:
        return self._run()

    def cancel(self) -> None:
        self._cancelled.set()


class ScriptedExecutor:
    """Implements Executor.

    Args:
        scripts: answers. A mapping from prompt ids to ids, or a sequence used up in order of arrival. A request without
            one gets `made_up_answer`. After the end of a script comes `eos_token_id`, again and again.
        step_s: least duration of a step.
        token_s: added for every token of the step, as a prefill costs.
        gate: when given, every step waits until it is set (or the step is cancelled).
        hold_after: a step whose requests have all drawn so many tokens waits until it is cancelled, or this is None again.
        fail_steps: step id → exception that result() raises, after the plan's tables and requests were taken in.
        fail_submits: step id → exception that submit() raises, before anything was taken in.
        fail_requests: index of arrival at the executor (0, 1, …) → message: that request's next draw is an error.
    Attributes:
        plans: every plan, in order. results: every result. num_cancelled_steps. known: live request ids.
    """

    def __init__(
        self,
        scripts: Mapping[tuple[int, ...], Sequence[int]] | Sequence[Sequence[int]] = (),
        *,
        num_blocks: int = 256,
        block_size: int = 32,
        vocab_size: int = 1000,
        max_model_len: int = 4096,
        max_num_batched_tokens: int = 512,
        eos_token_id: int = 2,
        step_s: float = 0.0,
        token_s: float = 0.0,
        gate: threading.Event | None = None,
        hold_after: int | None = None,
        fail_steps: Mapping[int, Exception] | None = None,
        fail_submits: Mapping[int, Exception] | None = None,
        fail_requests: Mapping[int, str] | None = None,
    ) -> None:
        self._by_prompt = dict(scripts) if isinstance(scripts, Mapping) else {}
        self._in_order = deque(() if isinstance(scripts, Mapping) else scripts)
        self.eos_token_id = eos_token_id
        self.step_s, self.token_s, self.gate, self.hold_after = step_s, token_s, gate, hold_after
        self.fail_steps = dict(fail_steps or {})
        self.fail_submits = dict(fail_submits or {})
        self.fail_requests = dict(fail_requests or {})
        self.info = ExecutorInfo(
            num_blocks=num_blocks,
            block_size=block_size,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            weight_bytes=0,
            kv_bytes=0,
            scratch_bytes=0,
            numerics_profile="scripted",
            description={"executor": "scripted"},
        )
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []
        self.num_cancelled_steps = 0
        self.closed = False
        self._known: dict[RequestId, _Known] = {}
        self._order: list[RequestId] = []
        self._store: dict[int, _Block] = {}
        self._busy = False

    @property
    def known(self) -> set[RequestId]:
        return set(self._known)

    def submit(self, plan: StepPlan) -> ScriptedHandle:
        if self._busy:
            raise BadPlan("a second step before the first one's result")
        if plan.step_id in self.fail_submits:
            raise self.fail_submits[plan.step_id]
        gate = self.gate  # before the plan is seen: whoever has seen it may put another there for the steps to come
        self.plans.append(plan)
        self._take_in(plan)
        self._busy = True
        cancelled = threading.Event()
        return ScriptedHandle(lambda: self._run(plan, gate, cancelled), cancelled)

    def close(self) -> None:
        self.closed = True

    def _take_in(self, plan: StepPlan) -> None:
        for request_id in plan.finished:
            self._known.pop(request_id, None)
        for new in plan.new:
            if new.request_id in self._known:
                raise BadPlan(f"request {new.request_id} is new twice")
            if new.sampling.seed is None or new.sampling.max_tokens is None:
                raise BadPlan(f"request {new.request_id} is not resolved: {new.sampling}")
            script = self._by_prompt.get(new.prompt_token_ids)
            if script is None and self._in_order:
                script = self._in_order.popleft()
            self._known[new.request_id] = _Known(new, list(new.prompt_token_ids), script)
            self._order.append(new.request_id)
        for update in plan.block_tables:
            known = self._get(update.request_id)
            if update.block_ids.dtype != np.int32 or update.start > len(known.table):
                raise BadPlan(f"table of request {update.request_id}: starts at {update.start} of {len(known.table)}")
            known.table[update.start :] = [int(block_id) for block_id in update.block_ids]
            if update.start == 0:
                known.num_computed = 0
        self._check_chunks(plan)

    def _get(self, request_id: RequestId) -> _Known:
        if request_id not in self._known:
            raise BadPlan(f"request {request_id} is unknown")
        return self._known[request_id]

    def _check_chunks(self, plan: StepPlan) -> None:
        if not plan.chunks or plan.num_tokens > self.info.max_num_batched_tokens:
            raise BadPlan(f"{plan.num_tokens} tokens in step {plan.step_id}, at most {self.info.max_num_batched_tokens}")
        used: dict[int, RequestId] = {}
        for chunk in plan.chunks:
            known = self._get(chunk.request_id)
            end = chunk.start + chunk.num_tokens
            if chunk.num_tokens < 1 or chunk.start != known.num_computed or end > len(known.tokens):
                raise BadPlan(f"{chunk} after {known.num_computed} computed of {len(known.tokens)} tokens")
            if len(known.table) * self.info.block_size < end:
                raise BadPlan(f"{chunk}: its table has {len(known.table)} blocks")
            for block_id in known.table:
                if not 0 <= block_id < self.info.num_blocks or used.setdefault(block_id, chunk.request_id) != chunk.request_id:
                    raise BadPlan(f"block {block_id} of request {chunk.request_id} is not its own")
        if len({chunk.request_id for chunk in plan.chunks}) != len(plan.chunks):
            raise BadPlan("a request has two chunks")

    def _run(self, plan: StepPlan, gate: threading.Event | None, cancelled: threading.Event) -> StepResult:
        started = time.perf_counter()
        try:
            if plan.step_id in self.fail_steps:
                raise self.fail_steps[plan.step_id]
            if self._wait(plan, gate, cancelled):
                self.num_cancelled_steps += 1
                result = StepResult(plan.step_id, (), (time.perf_counter() - started) * 1e3, cancelled=True)
            else:
                chunks = tuple([self._compute(chunk) for chunk in plan.chunks])
                result = StepResult(plan.step_id, chunks, (time.perf_counter() - started) * 1e3)
        finally:
            self._busy = False
        self.results.append(result)
        return result

    def _wait(self, plan: StepPlan, gate: threading.Event | None, cancelled: threading.Event) -> bool:
        """Spend the step's time; True if it was cancelled."""
        while gate is not None and not gate.wait(0.001):
            if cancelled.is_set():
                return True
        drawn, give_up_s = [self._known[chunk.request_id].num_drawn for chunk in plan.chunks], time.monotonic() + HOLD_S
        while (hold_after := self.hold_after) is not None and min(drawn) >= hold_after and not cancelled.wait(0.001):
            assert time.monotonic() < give_up_s, f"step {plan.step_id} was not cancelled"
        seconds = self.step_s + self.token_s * plan.num_tokens
        return cancelled.wait(seconds) if seconds > 0 else cancelled.is_set()

    def _compute(self, chunk: ScheduledChunk) -> ChunkResult:
        known = self._known[chunk.request_id]
        end = chunk.start + chunk.num_tokens
        value = self._read(known, chunk.start)
        for position in range(chunk.start, end):
            value = fold(value, known.tokens[position])
            self._write(known, position, value)
        known.num_computed = end
        sampling = known.new.sampling
        prompt_logprobs = self._prompt_logprobs(known, chunk) if sampling.prompt_logprobs is not None else ()
        if end < len(known.tokens) or sampling.max_tokens == 0:
            return ChunkResult(chunk.request_id, prompt_logprobs=prompt_logprobs)
        error = self.fail_requests.get(self._order.index(chunk.request_id))
        if error is not None:
            return ChunkResult(chunk.request_id, error=error)
        token_id = self._draw(known, value)
        known.tokens.append(token_id)
        logprobs = () if sampling.logprobs is None else (_logprobs(token_id, sampling.logprobs),)
        return ChunkResult(chunk.request_id, (token_id,), logprobs, prompt_logprobs)

    def _read(self, known: _Known, num_tokens: int) -> int:
        """The fold of the first `num_tokens` tokens, read through the block table; all of them must be in the store."""
        request_id, size, value = known.new.request_id, self.info.block_size, 0
        for index in range(-(-num_tokens // size)):
            wanted = min(size, num_tokens - index * size)
            block = self._store.get(known.table[index])
            if block is None or (block.request_id, block.index) != (request_id, index) or len(block.folds) < wanted:
                raise BadPlan(f"tokens {index * size} … of request {request_id} are not in the store, but {block}")
            value = block.folds[wanted - 1]
        return value

    def _write(self, known: _Known, position: int, value: int) -> None:
        index, offset = divmod(position, self.info.block_size)
        block_id = known.table[index]
        if offset == 0:
            self._store[block_id] = _Block(known.new.request_id, index, [])
        folds = self._store[block_id].folds
        folds[offset:] = [value]  # whatever was written after it is stale

    def _draw(self, known: _Known, value: int) -> int:
        if known.script is None:
            return made_up_token(value, self.info.vocab_size)
        return known.script[known.num_drawn] if known.num_drawn < len(known.script) else self.eos_token_id

    def _prompt_logprobs(self, known: _Known, chunk: ScheduledChunk) -> tuple[TokenLogprobs, ...]:
        prompt = known.new.prompt_token_ids
        stop = min(chunk.start + chunk.num_tokens + 1, len(prompt))
        count = known.new.sampling.prompt_logprobs or 0
        return tuple([_logprobs(prompt[position], count) for position in range(chunk.start + 1, stop)])


def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    """Numbers that tell tokens apart: -(id + 1) / 1000 for the token itself, lower for the ids after it."""
    return TokenLogprobs(
        token_id, -(token_id + 1) / 1000, tuple([(token_id + i, -(token_id + 1 + i) / 1000) for i in range(num_top)])
    )


def greedy(max_tokens: int | None = None, **fields: object) -> SamplingParams:
    """Greedy SamplingParams with a seed, for tests that do not care about drawing."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0, **fields)  # type: ignore[arg-type]
