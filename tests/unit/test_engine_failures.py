"""Cancel, errors and failed steps: every request gets exactly one end (EngineRun checks it), the others go on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import pytest

from hasten.config import EngineConfig
from hasten.engine.engine import Engine
from hasten.errors import EngineStopped, HastenError
from hasten.request import EngineRequest, FinishReason, TokenEvent
from hasten.scheduler.plan import StepPlan, StepResult
from tests.support.engine_run import EngineRun
from tests.support.scripted import ScriptedExecutor, ScriptedHandle, greedy, made_up_answer


def test_cancel_stops_the_running_step_when_nobody_else_needs_it() -> None:
    executor = ScriptedExecutor(step_s=30.0)
    with EngineRun(executor) as run:
        request = run.submit(range(3, 903), 5)
        run.wait_until(lambda: executor.plans, "the prefill")
        started = time.monotonic()
        run.engine.cancel(request)
        assert run.wait(request).finish_reason is FinishReason.CANCELLED
        assert time.monotonic() - started < 2
        assert run.events(request)[-1].token_ids == ()
    assert executor.num_cancelled_steps == 1


def test_cancel_during_prefill_leaves_at_the_end_of_the_step_and_does_not_disturb_others() -> None:
    executor = ScriptedExecutor(gate=(gate := threading.Event()))
    with EngineRun(executor, chunk=8, start=False) as run:
        long, other = run.submit(range(3, 403), 5), run.submit(range(3, 203), 5)
        run.start()
        run.wait_until(lambda: executor.plans, "the first step")
        run.engine.cancel(long)
        gate.set()
        assert run.wait(long).finish_reason is FinishReason.CANCELLED
        assert run.tokens(other) == made_up_answer(range(3, 203), 5, 1000)
        assert run.step_ids(long) == [1]
        run.tokens(run.submit([3], 1))
        assert long not in executor.known, "the executor was told"
    assert executor.num_cancelled_steps == 0


def test_step_is_stopped_when_the_last_of_its_requests_is_cancelled() -> None:
    executor = ScriptedExecutor(gate=threading.Event())
    with EngineRun(executor) as run:
        first, second = run.submit([3], 5), run.submit([4], 5)
        run.wait_until(lambda: executor.plans, "the first step")
        run.engine.cancel(first)
        later = run.submit([5], 5)  # not in the step
        in_step = {chunk.request_id for chunk in executor.plans[0].chunks}
        for request in in_step:
            run.engine.cancel(request)
        for request in in_step | {first}:
            assert run.wait(request).finish_reason is FinishReason.CANCELLED
        assert executor.gate is not None
        executor.gate.set()
        assert run.tokens(later) == made_up_answer([5], 5, 1000)
        run.engine.cancel(second)
    assert executor.num_cancelled_steps >= 1


def test_cancel_of_waiting_unknown_and_finished_requests() -> None:
    executor = ScriptedExecutor(gate=(gate := threading.Event()))
    with EngineRun(executor, max_num_seqs=1) as run:
        running = run.submit([3], 50)
        run.wait_until(lambda: executor.plans, "the first step")
        waiting = run.submit([4], 50)
        run.engine.cancel(waiting)
        gate.set()
        assert run.wait(waiting).finish_reason is FinishReason.CANCELLED
        run.engine.cancel(12345)
        assert run.tokens(running) == made_up_answer([3], 50, 1000)
        run.engine.cancel(running)
        run.engine.cancel(running)
    assert run.step_ids(waiting) == []
    assert {new.request_id for plan in executor.plans for new in plan.new} == {running}


def test_error_of_one_request_is_its_own() -> None:
    with EngineRun(executor := ScriptedExecutor(fail_requests={1: "the logits are not finite"})) as run:
        requests = [run.submit([3 + i], 10) for i in range(3)]
        assert run.wait(requests[1]).finish_reason is FinishReason.ERROR
        assert run.wait(requests[1]).error == "the logits are not finite"
        for i in (0, 2):
            assert run.tokens(requests[i]) == made_up_answer([3 + i], 10, 1000)
        run.tokens(run.submit([3], 1))
        assert requests[1] not in executor.known


@pytest.mark.parametrize("where", ["fail_steps", "fail_submits"])
def test_failed_step_fails_its_requests_and_the_engine_lives_on(where: str, caplog: pytest.LogCaptureFixture) -> None:
    executor = ScriptedExecutor(**{where: {3: HastenError("the weights fell down")}})
    with EngineRun(executor, max_num_seqs=2, start=False) as run:
        requests = [run.submit([3 + i], 20) for i in range(4)]
        run.start()
        for request in requests[:2]:
            end = run.wait(request)
            assert end.finish_reason is FinishReason.ERROR
            assert end.error is not None
            assert "step 3" in end.error
            assert "the weights fell down" in end.error
            assert end.ledger is not None
        for i in (2, 3):
            assert run.tokens(requests[i]) == made_up_answer([3 + i], 20, 1000)
        run.tokens(run.submit([3], 1))
        assert executor.known.isdisjoint(requests)
    assert "step 3 failed" in caplog.text


def test_finished_ids_of_a_plan_nobody_heard_are_told_again() -> None:
    # request 1 ends in step 1; step 2, which would tell, is refused at submit
    executor = ScriptedExecutor(fail_submits={2: RuntimeError("busy")})
    with EngineRun(executor, start=False) as run:
        first, second = run.submit([3], 1), run.submit([4], 10)
        run.start()
        run.wait(first), run.wait(second)
        run.tokens(run.submit([5], 2))
        assert first not in executor.known


def test_steps_that_keep_failing_stop_the_engine_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    executor = ScriptedExecutor(fail_steps={i: MemoryError("no memory") for i in range(2, 100)})
    with EngineRun(executor, max_num_seqs=1, start=False) as run:
        requests = [run.submit([3 + i], 20) for i in range(6)]
        run.start()
        ends = [run.wait(request) for request in requests]
        assert all(end.finish_reason is FinishReason.ERROR for end in ends)
        with pytest.raises(EngineStopped, match=r"after 3 failed steps in a row.*no memory"):
            run.submit([3], 1)
        assert "no memory" in (run.engine.snapshot().failed or "")
        assert run.engine.drain(1.0) is True
    assert len(executor.plans) == 4
    assert "no memory" in caplog.text


class _WrongAnswers(ScriptedExecutor):
    def submit(self, plan: StepPlan) -> ScriptedHandle:
        handle = super().submit(plan)

        def lie() -> StepResult:
            result = handle.result()
            return StepResult(result.step_id + (plan.step_id == 2), result.chunks, result.compute_ms)

        return ScriptedHandle(lie, threading.Event())


def test_result_that_answers_another_plan_is_a_failed_step() -> None:
    with EngineRun(_WrongAnswers()) as run:
        assert "step 2" in (run.wait(run.submit([3], 20)).error or "")
        assert run.tokens(run.submit([4], 20)) == made_up_answer([4], 20, 1000)


class _DrawsNothing(ScriptedExecutor):
    def submit(self, plan: StepPlan) -> ScriptedHandle:
        handle = super().submit(plan)

        def mute() -> StepResult:
            result = handle.result()
            chunks = tuple(type(chunk)(chunk.request_id) for chunk in result.chunks)
            return StepResult(result.step_id, chunks, result.compute_ms)

        return ScriptedHandle(mute, threading.Event())


def test_executor_that_draws_no_token_is_an_error_and_no_hang() -> None:
    with EngineRun(_DrawsNothing()) as run:
        end = run.wait(run.submit([3], 20))
        assert (end.finish_reason, "drew no token" in (end.error or "")) == (FinishReason.ERROR, True)


def test_our_own_bug_ends_every_request_and_closes_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    executor = ScriptedExecutor(gate=(gate := threading.Event()))
    engine = Engine(executor, EngineConfig(max_num_seqs=1))
    events: list[TokenEvent] = []
    engine.start(events.extend)
    requests = [engine.submit(EngineRequest((3,), greedy(500))) for _ in range(3)]
    while not executor.plans:
        time.sleep(0.001)

    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(engine._batch._scheduler, "advance", broken)
    monkeypatch.setattr(engine._batch._scheduler, "finish", broken)
    gate.set()
    assert engine.drain(20.0) is True
    engine.stop()
    ends = [event for event in events if event.finish_reason is not None]
    assert sorted(event.request_id for event in ends) == requests
    assert all(event.finish_reason is FinishReason.ERROR and "a bug" in (event.error or "") for event in ends)
    with pytest.raises(EngineStopped):
        engine.submit(EngineRequest((3,), greedy(5)))
    assert "a bug" in caplog.text


def test_listener_that_raises_does_not_stop_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    events: list[TokenEvent] = []

    def listen(new: Sequence[TokenEvent]) -> None:
        events.extend(new)
        if len(events) == 3:
            raise KeyError("the listener's bug")

    engine = Engine(ScriptedExecutor(), EngineConfig(), debug=True)
    engine.start(listen)
    engine.submit(EngineRequest((3,), greedy(10)))
    assert engine.drain(20.0) is True
    engine.stop()
    assert [event.token_ids[0] for event in events] == made_up_answer([3], 10, 1000)
    assert "the listener failed" in caplog.text


@pytest.fixture(autouse=True)
def _log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="hasten")


def test_a_request_cancelled_during_a_step_gets_none_of_its_tokens() -> None:
    executor = ScriptedExecutor(gate=(gate := threading.Event()))
    with EngineRun(executor) as run:
        blocker = run.submit([3], 1)
        run.wait_until(lambda: executor.plans, "the first step")
        both = [run.submit([4], 10), run.submit([5], 10)]
        executor.gate = second_gate = threading.Event()
        gate.set()
        run.wait(blocker)
        run.wait_until(lambda: len(executor.plans) == 2, "the step of both")
        run.engine.cancel(both[0])
        second_gate.set()
        assert run.tokens(both[0]) == []
        assert run.wait(both[0]).finish_reason is FinishReason.CANCELLED
        assert run.tokens(both[1]) == made_up_answer([5], 10, 1000)
    assert len(executor.plans[1].chunks) == 2


def test_failed_steps_with_good_ones_between_do_not_stop_the_engine() -> None:
    executor = ScriptedExecutor(fail_steps={i: HastenError("a hiccup") for i in (2, 4, 6, 8)})
    with EngineRun(executor, max_num_seqs=1) as run:
        failed = [run.submit([3], 20) for _ in range(4)]
        assert all("a hiccup" in (run.wait(request).error or "") for request in failed)
        assert run.tokens(run.submit([3], 20)) == made_up_answer([3], 20, 1000)
