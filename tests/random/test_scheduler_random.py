"""Scheduler, pool and batch in random order, against two naive models.

`NaivePlanner` says by counting who should run; ScriptedExecutor computes with what it is given, through the block tables,
and refuses plans that contradict themselves. Every answer must be the one of a request that is alone in the world.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hasten.cache.block_pool import BlockPool
from hasten.config import Batching
from hasten.engine.batch import Batch, check_answer
from hasten.engine.live_request import LiveRequest
from hasten.request import EngineRequest, FinishReason, TokenEvent
from hasten.scheduler.plan import StepPlan
from hasten.scheduler.policy import Policy
from tests.support.scripted import ScriptedExecutor, ScriptedHandle, greedy, made_up_answer

VOCAB_SIZE = 50


@dataclass
class Row:
    """A request in NaivePlanner. `held` is the number of tokens that its blocks cover."""

    known: int
    computed: int = 0
    held: int = 0


@dataclass
class NaivePlanner:
    """The rules of Scheduler's docstring in numbers: no ids, no pool, everything counted anew."""

    num_blocks: int
    block_size: int
    tokens: int
    seqs: int
    chunk: int | None
    static: bool
    running: dict[int, Row] = field(default_factory=dict)
    waiting: dict[int, Row] = field(default_factory=dict)
    batch: set[int] = field(default_factory=set)

    def free(self) -> int:
        return self.num_blocks - sum(-(-row.held // self.block_size) for row in self.running.values())

    def blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def plan(self) -> tuple[dict[int, int], list[int]]:
        """Tokens by request, and who is preempted."""
        plan: dict[int, int] = {}
        preempted: list[int] = []
        for i in [i for i, row in sorted(self.running.items()) if row.known - row.computed == 1]:
            if len(plan) < self.tokens and i in self.running:
                self.decode(i, plan, preempted)
        left = self.tokens - len(plan)
        if self.chunk is None and plan:
            left = min(left, 64)
        most = {None: 512, 0: self.tokens}.get(self.chunk, self.chunk) or 0
        for i, row in sorted(self.running.items()):
            if row.known - row.computed > 1 and left > 0:
                plan[i] = min(row.known - row.computed, most, left)
                left -= plan[i]
        if self.static and not self.batch & (self.running.keys() | self.waiting.keys()):
            self.batch = set(sorted(self.waiting)[: self.seqs])
        for i, row in sorted(self.waiting.items()):
            full = len(self.running) == self.seqs or self.blocks(row.known) + len(self.running) > self.free()
            if left <= 0 or full or (self.static and i not in self.batch):
                break
            self.running[i] = self.waiting.pop(i)
            row.held = row.known
            plan[i] = min(row.known, most, left)
            left -= plan[i]
        return plan, preempted

    def decode(self, i: int, plan: dict[int, int], preempted: list[int]) -> None:
        row = self.running[i]
        while self.blocks(row.known) - self.blocks(row.held) > self.free():
            last = max(self.running)
            self.waiting[last] = Row(self.running.pop(last).known)
            preempted.append(last)
            if last == i:
                return
        row.held = max(row.held, row.known)
        plan[i] = 1

    def advance(self, plan: dict[int, int]) -> None:
        for i, num_tokens in plan.items():
            if i in self.running:
                self.running[i].computed += num_tokens
                self.running[i].known += self.running[i].computed == self.running[i].known

    def drop(self, i: int) -> None:
        self.running.pop(i, None)
        self.waiting.pop(i, None)


class World:
    """Batch and executor without threads, beside the naive planner."""

    def __init__(self, planner: NaivePlanner, batching: Batching) -> None:
        self.planner = planner
        self.executor = ScriptedExecutor(
            num_blocks=planner.num_blocks,
            block_size=planner.block_size,
            vocab_size=VOCAB_SIZE,
            max_num_batched_tokens=planner.tokens,
            eos_token_id=1,
        )
        pool = BlockPool(planner.num_blocks, planner.block_size)
        self.batch = Batch(pool, Policy(planner.tokens, planner.seqs, planner.chunk, batching))
        self.requests: dict[int, EngineRequest] = {}
        self.events: dict[int, list[TokenEvent]] = {}
        self.now_s = 0.0

    def add(self, num_prompt: int, max_tokens: int) -> None:
        room = self.planner.num_blocks * self.planner.block_size
        num_prompt = min(num_prompt, room - 1)
        request_id = len(self.requests) + 1
        prompt = tuple(3 + (request_id * 7 + i) % (VOCAB_SIZE - 3) for i in range(num_prompt))
        request = EngineRequest(prompt, greedy(min(max_tokens, room - num_prompt)))
        self.requests[request_id] = request
        self.batch.add(LiveRequest(request_id, request, self.now_s), self.now_s)
        if request.sampling.max_tokens:
            self.planner.waiting[request_id] = Row(num_prompt)
        self.listen()

    def cancel(self, which: int) -> None:
        if self.requests:
            request_id = 1 + which % len(self.requests)
            self.batch.end(request_id, FinishReason.CANCELLED, self.now_s)
            self.batch.check()
            self.planner.drop(request_id)
            self.listen()

    def step(self, fate: str = "runs") -> None:
        if not self.batch.has_work:
            return
        self.now_s += 1
        expected, preempted = self.planner.plan()
        before = self.batch.counts.num_preemptions
        plan = self.batch.plan(self.now_s)
        assert {chunk.request_id: chunk.num_tokens for chunk in plan.chunks} == expected
        assert self.batch.counts.num_preemptions - before == len(preempted)
        self.batch.check()
        handle = self.executor.submit(plan)
        if fate == "is cancelled":
            self.give_up(handle, plan)
        elif fate == "fails":
            handle.result()
            self.batch.fail(plan, "it failed", self.now_s)
            for request_id in expected:
                self.planner.drop(request_id)
        else:
            result = handle.result()
            check_answer(plan, result)
            self.batch.apply(plan, result, self.now_s)
            self.planner.advance(expected)
        self.listen()
        for request_id in expected:
            if self.batch._live.get(request_id) is None:
                self.planner.drop(request_id)
        self.batch.check()

    def give_up(self, handle: ScriptedHandle, plan: StepPlan) -> None:
        handle.cancel()
        result = handle.result()
        check_answer(plan, result)
        self.batch.apply(plan, result, self.now_s)

    def listen(self) -> None:
        for event in self.batch.take_events():
            self.events.setdefault(event.request_id, []).append(event)

    def finish(self) -> None:
        """Everybody ends, in no more steps than one after the other would take with every token computed twice."""
        limit = 10 + 4 * sum(len(r.prompt_token_ids) + (r.sampling.max_tokens or 0) for r in self.requests.values())
        while self.batch.has_work:
            self.step()
            limit -= 1
            assert limit > 0, "it does not end"

    def check_answers(self) -> None:
        assert self.events.keys() == self.requests.keys()
        for request_id, events in self.events.items():
            request = self.requests[request_id]
            tokens = [token_id for event in events for token_id in event.token_ids]
            assert [event.finish_reason is not None for event in events] == [False] * (len(events) - 1) + [True]
            answer = made_up_answer(request.prompt_token_ids, request.sampling.max_tokens or 0, VOCAB_SIZE)
            whole = events[-1].finish_reason is FinishReason.LENGTH
            assert tokens == (answer if whole else answer[: len(tokens)])
            ledger = events[-1].ledger
            assert ledger is not None
            assert ledger.completion_tokens == len(tokens)
            assert sum(part.ms for part in ledger.parts) == pytest.approx(ledger.wall_ms)


_actions = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 70), st.integers(0, 40)),
    st.tuples(st.just("add"), st.integers(1, 8), st.integers(1, 8)),
    st.tuples(st.just("cancel"), st.integers(0, 100)),
    st.tuples(st.just("step"), st.sampled_from(["runs"] * 8 + ["is cancelled", "fails"])),
    st.tuples(st.just("step"), st.just("runs")),
)


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        NaivePlanner,
        num_blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 4, 32]),
        tokens=st.sampled_from([1, 3, 16, 100, 600]),
        seqs=st.integers(1, 5),
        chunk=st.sampled_from([None, 0, 1, 5, 64]),
        static=st.booleans(),
    ),
    st.lists(_actions, max_size=40),
)
# the last unfinished member of a static batch leaves between two steps: the answer that waited for it is let go
@example(
    NaivePlanner(num_blocks=3, block_size=4, tokens=1, seqs=2, chunk=None, static=True),
    [("add", 1, 1), ("add", 1, 1), ("step", "runs"), ("cancel", 1)],
)
def test_any_order_of_events(planner: NaivePlanner, actions: list[tuple]) -> None:  # type: ignore[type-arg]
    world = World(copy.deepcopy(planner), "static" if planner.static else "continuous")
    for name, *arguments in actions:
        getattr(world, name)(*arguments)
    world.finish()
    world.check_answers()
    assert world.batch.counts.num_generated_tokens == sum(
        len(event.token_ids) for events in world.events.values() for event in events
    )
