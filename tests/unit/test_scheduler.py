"""Single decisions of the scheduler; test_scheduler_random.py has the whole."""

from __future__ import annotations

import pytest

from hasten.cache.block_pool import BlockPool
from hasten.config import Batching
from hasten.request import NEXT_STATUS, RequestStatus
from hasten.scheduler.plan import NewRequest
from hasten.scheduler.policy import Policy
from hasten.scheduler.scheduler import Schedule, Scheduler
from tests.support.scripted import greedy


def make(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    tokens: int = 32,
    seqs: int = 8,
    chunk: int | None = 0,
    batching: Batching = "continuous",
) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, block_size), Policy(tokens, seqs, chunk, batching))


def add(scheduler: Scheduler, *lengths: int, first_id: int = 1) -> None:
    for i, length in enumerate(lengths):
        scheduler.add(NewRequest(first_id + i, tuple(range(length)), greedy(100)))


def step(scheduler: Scheduler) -> Schedule:
    """Plan, and draw a token for every chunk that reaches its request's end."""
    schedule = scheduler.schedule()
    for chunk in schedule.plan.chunks:
        state = scheduler._states[chunk.request_id]
        scheduler.advance(chunk, int(chunk.start + chunk.num_tokens == state.num_tokens))
    scheduler.check()
    return schedule


def sizes(schedule: Schedule) -> dict[int, int]:
    return {chunk.request_id: chunk.num_tokens for chunk in schedule.plan.chunks}


def test_requests_share_a_step_in_order_of_arrival() -> None:
    scheduler = make(tokens=10)
    add(scheduler, 4, 20, 3)
    planned = [sizes(step(scheduler)) for _ in range(5)]
    assert planned == [{1: 4, 2: 6}, {1: 1, 2: 9}, {1: 1, 2: 5, 3: 3}, {1: 1, 2: 1, 3: 1}, {1: 1, 2: 1, 3: 1}]


def test_a_newcomer_takes_a_freed_place_in_the_next_step() -> None:
    scheduler = make(seqs=2)
    add(scheduler, 4, 4, 4)
    assert sizes(step(scheduler)) == {1: 4, 2: 4}
    scheduler.finish(1)
    schedule = step(scheduler)
    assert sizes(schedule) == {2: 1, 3: 4}
    assert schedule.plan.finished == (1,)
    assert [new.request_id for new in schedule.plan.new] == [3]


def test_a_place_is_kept_for_nobody_who_finished_before_the_executor_met_them() -> None:
    scheduler = make(seqs=1)
    add(scheduler, 4, 4)
    scheduler.finish(1)
    schedule = step(scheduler)
    assert (schedule.plan.finished, sizes(schedule)) == ((), {2: 4})


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (None, [{1: 512}, {1: 88, 2: 424}, {1: 1, 2: 64}, {1: 1, 2: 64}]),
        (0, [{1: 600, 2: 424}, {1: 1, 2: 576}, {1: 1, 2: 1}, {1: 1, 2: 1}]),
        (300, [{1: 300, 2: 300}, {1: 300, 2: 300}, {1: 1, 2: 300}, {1: 1, 2: 100}]),
    ],
)
def test_chunk_limits(chunk: int | None, expected: list[dict[int, int]]) -> None:
    scheduler = make(num_blocks=1000, tokens=1024, chunk=chunk)
    add(scheduler, 600, 1000)
    if chunk is None:  # auto shares its 512 among the prompts of a step that decodes nothing
        scheduler._policy = Policy(512, 8, None)
    assert [sizes(step(scheduler)) for _ in range(4)] == expected


def test_auto_lets_64_prompt_tokens_ride_beside_decodes_all_prompts_together() -> None:
    scheduler = make(num_blocks=1000, tokens=512, chunk=None)
    add(scheduler, 1)
    step(scheduler)
    add(scheduler, 40, 40, 40, first_id=2)
    planned = [sizes(step(scheduler)) for _ in range(3)]
    assert planned == [{1: 1, 2: 40, 3: 24}, {1: 1, 2: 1, 3: 16, 4: 40}, {1: 1, 2: 1, 3: 1, 4: 1}]


def test_tables_are_sent_as_deltas() -> None:
    scheduler = make(block_size=4, tokens=64)
    add(scheduler, 6)
    updates = [step(scheduler).plan.block_tables for _ in range(4)]
    assert [[(u.request_id, u.start, len(u.block_ids)) for u in update] for update in updates] == [
        [(1, 0, 2)],
        [],
        [],
        [(1, 2, 1)],
    ]


def test_latest_arrival_is_preempted_and_resumes_from_the_start_with_a_new_table() -> None:
    scheduler = make(num_blocks=5, block_size=4, tokens=64)
    add(scheduler, 6, 5)
    assert sizes(step(scheduler)) == {1: 6, 2: 5}  # 2 blocks each, one is free
    assert sizes(step(scheduler)) == {1: 1, 2: 1}
    assert sizes(step(scheduler)) == {1: 1, 2: 1}
    last = step(scheduler)  # 1 takes the free one for its 9th token
    assert (sizes(last), last.preempted) == ({1: 1, 2: 1}, ())
    last = step(scheduler)  # 2 needs a third for its own 9th
    assert (sizes(last), last.preempted) == ({1: 1}, (2,))
    add(scheduler, 1, first_id=3)
    assert sizes(step(scheduler)) == {1: 1}, "2 waits at the front: nobody overtakes it"
    scheduler.finish(1)
    back = step(scheduler)
    assert sizes(back)[2] == 9, "prompt and generated tokens in one run"
    assert [(u.request_id, u.start) for u in back.plan.block_tables] == [(2, 0), (3, 0)]
    assert [new.request_id for new in back.plan.new] == [3], "the executor knows 2"


def test_a_newcomer_leaves_room_for_the_running_ones_to_grow() -> None:
    scheduler = make(num_blocks=4, block_size=4, tokens=64)
    add(scheduler, 4, 12)  # 1 needs a second block with its next token
    assert sizes(step(scheduler)) == {1: 4}
    scheduler.finish(1)
    assert sizes(step(scheduler)) == {2: 12}


def test_a_cancelled_step_is_planned_again_without_its_deltas() -> None:
    scheduler = make(tokens=4)
    add(scheduler, 10)
    first, again = scheduler.schedule().plan, scheduler.schedule().plan
    assert first.chunks == again.chunks
    assert (again.new, again.block_tables, again.step_id) == ((), (), first.step_id + 1)


def test_static_batch_is_closed_until_every_member_is_done() -> None:
    scheduler = make(seqs=2, batching="static")
    add(scheduler, 4, 4, 4, 4)
    assert sizes(step(scheduler)) == {1: 4, 2: 4}
    scheduler.finish(1)
    assert not scheduler.batch_is_over
    assert sizes(step(scheduler)) == {2: 1}
    scheduler.finish(2)
    assert scheduler.batch_is_over
    assert sizes(step(scheduler)) == {3: 4, 4: 4}


def test_static_batch_is_formed_from_what_waits() -> None:
    scheduler = make(seqs=4, batching="static")
    add(scheduler, 4)
    step(scheduler)
    add(scheduler, 4, first_id=2)
    assert sizes(step(scheduler)) == {1: 1}, "a place is free, the batch is not"


def test_static_members_that_were_preempted_come_back_before_the_batch_is_over() -> None:
    scheduler = make(num_blocks=4, block_size=4, seqs=2, tokens=64, batching="static")
    add(scheduler, 4, 4, 1)
    schedules = [step(scheduler) for _ in range(6)]
    assert [s.preempted for s in schedules].count((2,)) == 1
    scheduler.finish(1)
    assert 2 in sizes(step(scheduler))
    assert 3 not in sizes(step(scheduler))


def test_status_moves_are_checked() -> None:
    for status in RequestStatus:
        for target in RequestStatus:
            scheduler = make()
            add(scheduler, 4)
            state = scheduler._states[1]
            state.status = status
            if target in NEXT_STATUS[status]:
                state.move_to(target)
            else:
                with pytest.raises(ValueError, match=f"request 1 cannot go from {status.value} to {target.value}"):
                    state.move_to(target)


def test_nothing_to_run_and_unknown_requests_are_loud() -> None:
    scheduler = make()
    with pytest.raises(AssertionError, match="nothing to run"):
        scheduler.schedule()
    with pytest.raises(KeyError):
        scheduler.finish(1)
    add(scheduler, 1000)  # cannot ever fit: the engine refuses such a prompt before it comes here
    with pytest.raises(AssertionError, match="nothing to run"):
        scheduler.schedule()


@pytest.mark.parametrize(("tokens", "seqs", "chunk"), [(0, 1, None), (1, 0, None), (1, 1, -1)])
def test_policy_refuses_impossible_numbers(tokens: int, seqs: int, chunk: int | None) -> None:
    with pytest.raises(ValueError, match=f"max_num_seqs is {seqs}"):
        Policy(tokens, seqs, chunk)


def test_check_sees_a_block_in_two_tables() -> None:
    scheduler = make()
    add(scheduler, 4, 4)
    step(scheduler)
    tables = [scheduler._states[i].block_table for i in (1, 2)]
    tables[0]._block_ids[0] = tables[1]._block_ids[0]
    with pytest.raises(AssertionError):
        scheduler.check()
