"""The ledger: spans that follow each other and add up, times against a clock kept by hand."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from hasten.engine.ledger import Timeline, extend, split_head
from hasten.engine.live_request import LiveRequest
from hasten.request import EngineRequest, Ledger
from hasten.scheduler.plan import ChunkResult, ScheduledChunk, StepPlan, StepResult
from tests.support.engine_run import EngineRun
from tests.support.scripted import ScriptedExecutor, greedy


def assert_adds_up(ledger: Ledger) -> None:
    assert ledger.parts[0].start_ms == pytest.approx(0.0)
    for before, after in pairwise(ledger.parts):
        assert after.start_ms == pytest.approx(before.start_ms + before.ms), f"gap before {after.name}"
    assert all(part.ms >= 0 for part in ledger.parts)
    assert sum(part.ms for part in ledger.parts) == pytest.approx(ledger.wall_ms)


def live(num_prompt: int = 8, max_tokens: int = 4) -> LiveRequest:
    return LiveRequest(1, EngineRequest(tuple(range(num_prompt)), greedy(max_tokens), public_id="chatcmpl-x"), 100.0)


def test_times_of_a_request_that_is_preempted_once() -> None:
    request = live()
    request.scheduled(7, 100.5)
    request.accept(ScheduledChunk(1, 0, 5), ChunkResult(1), step_id=7, now_s=100.7, shared=False)
    request.scheduled(8, 100.7)
    request.accept(ScheduledChunk(1, 5, 3), ChunkResult(1, (9,)), step_id=8, now_s=101.0, shared=True)
    request.scheduled(9, 101.0)
    request.accept(ScheduledChunk(1, 8, 1), ChunkResult(1, (9,)), step_id=9, now_s=101.25, shared=True)
    request.preempted(101.3)
    request.scheduled(15, 102.3)
    request.accept(ScheduledChunk(1, 0, 10), ChunkResult(1, (9,)), step_id=15, now_s=102.8, shared=True)
    request.scheduled(16, 102.8)
    request.accept(ScheduledChunk(1, 10, 1), ChunkResult(1, (9,)), step_id=16, now_s=103.0, shared=False)
    ledger = request.finish(103.0)
    assert_adds_up(ledger)
    spans = [(part.name, round(part.start_ms), round(part.ms), dict(part.detail)) for part in ledger.parts]
    assert spans == [
        ("queue", 0, 500, {}),
        ("prefill", 500, 500, {"chunks": 2, "tokens": 8, "shared_steps": 1}),
        ("decode", 1000, 300, {"chunks": 1, "tokens": 1, "shared_steps": 1}),
        ("preempted", 1300, 1000, {}),
        ("prefill", 2300, 500, {"chunks": 1, "tokens": 10, "shared_steps": 1}),
        ("decode", 2800, 200, {"chunks": 1, "tokens": 1, "shared_steps": 0}),
    ]
    assert ledger.ttft_ms == pytest.approx(1000)
    assert ledger.tpot_ms == pytest.approx(2000 / 3)
    assert dict(ledger.steps) == {"first_scheduled": 7, "first_token": 8, "last_token": 16}
    assert (ledger.id, ledger.prompt_tokens, ledger.completion_tokens, ledger.num_preemptions) == ("chatcmpl-x", 8, 4, 1)
    assert ledger.wall_ms == pytest.approx(3000)


def test_request_that_never_ran_spent_all_its_time_in_the_queue() -> None:
    ledger = live().finish(100.2)
    assert [(part.name, round(part.ms)) for part in ledger.parts] == [("queue", 200)]
    assert (ledger.ttft_ms, ledger.tpot_ms, dict(ledger.steps)) == (None, None, {})


def test_one_token_has_no_tpot() -> None:
    request = live(max_tokens=1)
    request.scheduled(1, 100.1)
    request.accept(ScheduledChunk(1, 0, 8), ChunkResult(1, (9,)), step_id=1, now_s=100.3, shared=False)
    ledger = request.finish(100.3)
    assert ledger.ttft_ms == pytest.approx(300)
    assert ledger.tpot_ms is None
    assert [part.name for part in ledger.parts] == ["queue", "prefill"]


def test_clock_that_stands_still_makes_empty_spans_not_negative_ones() -> None:
    timeline = Timeline(10.0)
    timeline.enter("prefill", 9.0)
    timeline.enter("decode", 10.0)
    parts = timeline.finish(10.0)
    assert all(part.ms == 0 for part in parts)


def _ledger() -> Ledger:
    request = live(max_tokens=1)
    request.scheduled(1, 100.1)
    request.accept(ScheduledChunk(1, 0, 8), ChunkResult(1, (9,)), step_id=1, now_s=100.3, shared=False)
    return request.finish(100.3)


def test_server_spans_are_cut_from_the_queue_and_put_behind_the_end() -> None:
    ledger = extend(split_head(_ledger(), {"parse": 20.0, "tokenize": 30.0}), "deliver", 340.0, {"bytes": 7})
    assert_adds_up(ledger)
    assert [(part.name, round(part.ms)) for part in ledger.parts] == [
        ("parse", 20),
        ("tokenize", 30),
        ("queue", 50),
        ("prefill", 200),
        ("deliver", 40),
    ]
    assert dict(ledger.parts[-1].detail) == {"bytes": 7}
    assert ledger.wall_ms == pytest.approx(340)


def test_server_spans_longer_than_the_queue_are_cut_and_the_wall_never_shrinks() -> None:
    ledger = extend(split_head(_ledger(), {"parse": 80.0, "tokenize": 70.0, "more": -5.0}), "deliver", 10.0)
    assert_adds_up(ledger)
    assert [round(part.ms) for part in ledger.parts] == [80, 20, 0, 0, 200, 0]
    assert ledger.wall_ms == pytest.approx(300)
    assert split_head(Ledger("x", 0.0, None, None, 0, 0, 0), {"parse": 1.0}).parts == ()


def test_ledgers_of_a_busy_engine_add_up_and_cover_the_wall_clock() -> None:
    executor = ScriptedExecutor(num_blocks=30, block_size=8, step_s=0.001)
    with EngineRun(executor, max_num_seqs=4, chunk=16, start=False) as run:
        applied: dict[int, float] = {}  # step id → when its result was taken in
        apply = run.engine._batch.apply

        def watched(plan: StepPlan, result: StepResult, now_s: float) -> None:
            applied[plan.step_id] = now_s
            apply(plan, result, now_s)

        run.engine._batch.apply = watched  # type: ignore[method-assign]
        started = time.monotonic()
        prompts = [tuple(range(3, 43 + 10 * i)) for i in range(6)]
        requests = [run.engine.submit(EngineRequest(prompt, greedy(40), arrival_s=started)) for prompt in prompts]
        run.start()
        ledgers = [run.wait(request).ledger for request in requests]
        wall_ms = (time.monotonic() - started) * 1e3
    for ledger in ledgers:
        assert ledger is not None
        assert_adds_up(ledger)
        assert ledger.wall_ms <= wall_ms
        assert ledger.ttft_ms is not None
        assert ledger.tpot_ms is not None
        # what the engine says of the first and of the gaps is what its parts and our clock say
        assert ledger.ttft_ms + 39 * ledger.tpot_ms == pytest.approx(ledger.wall_ms)
        assert ledger.ttft_ms == pytest.approx((applied[ledger.steps["first_token"]] - started) * 1e3)
        assert ledger.wall_ms == pytest.approx((applied[ledger.steps["last_token"]] - started) * 1e3)
    assert any(part.name == "preempted" for ledger in ledgers if ledger for part in ledger.parts)
