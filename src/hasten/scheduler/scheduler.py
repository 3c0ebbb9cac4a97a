"""Which tokens run in the next step. Sees token counts and block ids, never an array."""

from __future__ import annotations

from dataclasses import dataclass, field

from hasten.cache.block_pool import BlockPool
from hasten.cache.block_table import BlockTable
from hasten.request import RequestId, RequestStatus
from hasten.scheduler.plan import BlockTableUpdate, NewRequest, ScheduledChunk, StepPlan
from hasten.scheduler.policy import Policy
from hasten.scheduler.request_state import RequestState


@dataclass(frozen=True, slots=True)
class Schedule:
    """A plan, and whom it cost their blocks."""

    plan: StepPlan
    preempted: tuple[RequestId, ...] = ()


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    new: list[NewRequest] = field(default_factory=list)
    block_tables: list[BlockTableUpdate] = field(default_factory=list)
    chunks: list[ScheduledChunk] = field(default_factory=list)
    preempted: list[RequestId] = field(default_factory=list)

    def add(self, state: RequestState, num_tokens: int) -> None:
        if not state.sent:
            self.new.append(state.new)
            state.sent = True
        update = state.take_update()
        if update is not None:
            self.block_tables.append(update)
        self.chunks.append(state.chunk(num_tokens))


class Scheduler:
    """Continuous batching: requests join and leave at every step.

    A step takes, in this order and each in order of arrival: one token of every running request that decodes; a chunk of
    every running request whose prompt is not done; waiting requests, while there are places (`max_num_seqs`), tokens
    (`max_num_batched_tokens`, `chunk`) and blocks. A request gets blocks for all its known tokens when it joins, later
    one at a time. When there is none, the latest arrival is preempted: its blocks are released and it waits at the
    front of the queue for its tokens to be computed again. The earliest request is therefore never preempted while it
    needs blocks, and since every request alone fits the pool (checked by the engine), the earliest always gets on.

    Static batching (`Policy.batching`): a batch is formed, when there is none, from the first `max_num_seqs` that
    wait; nobody joins until every member has finished. Members that finish early give back their blocks but keep their
    place; no arithmetic is spent on it (a server that pads would also pay for that). `batch_is_over` tells the engine
    when to let the answers go.
    """

    def __init__(self, pool: BlockPool, policy: Policy) -> None:
        self._pool = pool
        self._policy = policy
        self._states: dict[RequestId, RequestState] = {}
        # both by arrival, and everyone who runs has arrived before everyone who waits: requests join in order, and it is
        # the latest that is preempted
        self._running: list[RequestState] = []
        self._waiting: list[RequestState] = []
        self._finished: list[RequestId] = []  # the executor has to be told
        self._batch: set[RequestId] = set()  # static batching: members, finished ones included
        self._step_id = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._states)

    @property
    def batch_is_over(self) -> bool:
        """Static batching: every member of the batch has finished (or there is none)."""
        return self._batch.isdisjoint(self._states)

    def add(self, new: NewRequest) -> None:
        """Queue a request. Its id must be higher than every earlier one: ids are the order of arrival."""
        state = RequestState(new, BlockTable(self._pool))
        self._states[new.request_id] = state
        self._waiting.append(state)

    def schedule(self) -> Schedule:
        """Plan one step; call `advance` for its chunks (or `finish`) before the next. Needs has_work.

        The plan has at least one chunk.
        """
        draft = _Draft()
        self._plan_decodes(draft)
        budget = self._policy.prompt_budget(len(draft.chunks))
        budget = self._plan_prompts(draft, budget)
        self._admit(draft, budget)
        if not draft.chunks:
            raise AssertionError(f"nothing to run: {self.num_waiting} wait, {self._pool.num_free} blocks are free")
        self._step_id += 1
        finished, self._finished = tuple(self._finished), []
        plan = StepPlan(self._step_id, finished, tuple(draft.new), tuple(draft.block_tables), tuple(draft.chunks))
        return Schedule(plan, tuple(draft.preempted))

    def advance(self, chunk: ScheduledChunk, num_new_tokens: int) -> None:
        """A chunk has been computed and gave `num_new_tokens` tokens. Unknown (finished) requests are ignored."""
        state = self._states.get(chunk.request_id)
        if state is not None:
            state.num_computed_tokens = chunk.start + chunk.num_tokens
            state.num_tokens += num_new_tokens

    def finish(self, request_id: RequestId) -> None:
        """Forget a request, wherever it is; its blocks are free at once. Raises KeyError if it is unknown."""
        state = self._states.pop(request_id)
        (self._waiting if state.status is RequestStatus.WAITING else self._running).remove(state)
        state.move_to(RequestStatus.FINISHED)
        state.block_table.release()
        if state.sent:
            self._finished.append(request_id)

    def tell_again(self, request_ids: tuple[RequestId, ...]) -> None:
        """A plan failed and nobody knows how much of it was heard: repeat its `finished` in the next one."""
        self._finished[:0] = request_ids

    def check(self) -> None:
        """Pool and tables agree. Raises AssertionError."""
        self._pool.check()
        held = sorted(block_id for state in self._states.values() for block_id in state.block_table.block_ids)
        if len(set(held)) != len(held):
            raise AssertionError(f"a block is in two tables: {held}")
        if len(held) + self._pool.num_free != self._pool.num_blocks:
            raise AssertionError(f"{len(held)} blocks are held, {self._pool.num_free} free, of {self._pool.num_blocks}")
        if len(self._running) > self._policy.max_num_seqs:
            raise AssertionError(f"{len(self._running)} requests run, max_num_seqs is {self._policy.max_num_seqs}")
        for queue, status in ((self._waiting, RequestStatus.WAITING), (self._running, RequestStatus.RUNNING)):
            if any(state.status is not status for state in queue):
                raise AssertionError(
                    f"{[state.request_id for state in queue if state.status is not status]} are not {status.value}"
                )
        order = [state.request_id for state in self._running + self._waiting]
        if order != sorted(order) or len(order) != len(self._states):
            raise AssertionError(f"requests out of order: {order}, {len(self._states)} are known")

    def _plan_decodes(self, draft: _Draft) -> None:
        for state in [state for state in self._running if state.is_decoding]:
            if len(draft.chunks) == self._policy.max_num_batched_tokens:
                return
            if state.status is RequestStatus.RUNNING and self._make_room(state, draft):
                draft.add(state, 1)

    def _make_room(self, state: RequestState, draft: _Draft) -> bool:
        """Get the block that the next token needs, from later arrivals if it must be. False: `state` itself had to go.

        Decodes are planned in order of arrival, so a victim, which came later, has no chunk in the draft yet.
        """
        while state.block_table.num_missing(state.num_tokens) > self._pool.num_free:
            victim = self._running.pop()
            victim.preempt()
            self._waiting.insert(0, victim)
            draft.preempted.append(victim.request_id)
            if victim is state:
                return False
        state.block_table.grow(state.num_tokens)
        return True

    def _plan_prompts(self, draft: _Draft, budget: int) -> int:
        """Chunks of running requests with more than one token left; what is left of `budget`."""
        for state in self._running:
            if budget > 0 and not state.is_decoding:
                budget -= self._add_chunk(draft, state, budget)
        return budget

    def _add_chunk(self, draft: _Draft, state: RequestState, budget: int) -> int:
        num_tokens = min(state.num_left, budget, self._policy.chunk_limit())
        draft.add(state, num_tokens)
        return num_tokens

    def _admit(self, draft: _Draft, budget: int) -> None:
        """Let waiting requests join, strictly in order: the first that does not fit keeps the others waiting."""
        if self._policy.batching == "static" and self.batch_is_over:
            self._batch = {state.request_id for state in self._waiting[: self._policy.max_num_seqs]}
        while self._waiting and budget > 0 and self.num_running < self._policy.max_num_seqs:
            state = self._waiting[0]
            if self._policy.batching == "static" and state.request_id not in self._batch:
                return
            # one block to grow for each that runs already, lest the newcomer be preempted again at once; so a request
            # that has just been preempted does not come back in the same step either
            if state.block_table.num_missing(state.num_tokens) + self.num_running > self._pool.num_free:
                return
            state.block_table.grow(state.num_tokens)
            state.move_to(RequestStatus.RUNNING)
            del self._waiting[0]
            self._running.append(state)
            budget -= self._add_chunk(draft, state, budget)
