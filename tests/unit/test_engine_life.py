"""The engine's thread from start to stop: idle, awake, draining."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from hasten.errors import EngineStopped
from hasten.request import FinishReason
from tests.support.engine_run import EngineRun
from tests.support.scripted import ScriptedExecutor


class _Waker:
    """What waking any thread takes: another thread that does nothing but wait on a condition."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._wanted = self._woken = 0
        self._woken_s = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def wake_ms(self) -> float:
        time.sleep(0.005)  # it is idle by then, as the engine is
        with self._condition:
            self._wanted += 1
            started = time.perf_counter()
            self._condition.notify_all()
            assert self._condition.wait_for(lambda: self._woken == self._wanted, timeout=20)
        return (self._woken_s - started) * 1e3

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._condition.wait_for(lambda: self._woken < self._wanted, timeout=60):
                    return
                self._woken_s = time.perf_counter()
                self._woken = self._wanted
                self._condition.notify_all()


def test_idle_engine_sleeps_and_wakes_within_a_millisecond() -> None:
    waker = _Waker()
    with EngineRun(ScriptedExecutor()) as run:
        run.wait(run.submit([3], 1))
        thread = run.engine._thread
        assert thread is not None
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)  # of that thread alone: earlier tests have left others
        cpu_before, started = time.clock_gettime(clock), time.perf_counter()
        time.sleep(0.3)
        idle_share = (time.clock_gettime(clock) - cpu_before) / (time.perf_counter() - started)
        waits_ms: list[float] = []
        give_up = time.monotonic() + 50
        while len(waits_ms) < 20:
            assert time.monotonic() < give_up, "no thread on this machine wakes within half a millisecond"
            control_ms = waker.wake_ms()
            run.wait(request := run.submit([3], 1))
            ledger = run.wait(request).ledger
            assert ledger is not None
            if control_ms < 0.5:  # while nothing wakes in time here, the engine cannot either
                waits_ms.append(ledger.parts[0].ms)
    assert idle_share < 0.01
    assert sorted(waits_ms)[5] < 1.0, "from submit to the start of the step, in a quarter of the tries (shared machine)"


def test_starting_the_engine_shortens_the_switch_interval() -> None:
    sys.setswitchinterval(0.005)
    with EngineRun(ScriptedExecutor()):
        assert sys.getswitchinterval() == pytest.approx(1e-4)


def test_drain_waits_then_cancels_and_takes_no_more() -> None:
    with EngineRun(ScriptedExecutor(step_s=0.001)) as run:
        short = run.submit([3], 5)
        assert run.engine.drain(20.0) is True
        assert run.wait(short).finish_reason is FinishReason.LENGTH
        with pytest.raises(EngineStopped, match="shutting down"):
            run.submit([3], 5)
    with EngineRun(ScriptedExecutor(step_s=0.001, num_blocks=256)) as run:
        endless, waiting = run.submit([3], 4000), run.submit([4], 4000)
        run.wait_for_tokens(endless, 3)
        assert run.engine.drain(0.01) is False
        assert run.wait(endless).finish_reason is run.wait(waiting).finish_reason is FinishReason.CANCELLED


def test_stop_ends_what_is_open() -> None:
    with EngineRun(ScriptedExecutor(step_s=0.001), max_num_seqs=1) as run:
        requests = [run.submit([3], 4000) for _ in range(3)]
        run.wait_for_tokens(requests[0], 3)
        run.engine.stop()
        run.engine.stop()
        assert all(run.wait(request).finish_reason is FinishReason.CANCELLED for request in requests)
        with pytest.raises(EngineStopped, match="stopped"):
            run.submit([3], 5)
        with pytest.raises(RuntimeError):
            run.engine.start(lambda events: None)


def test_requests_that_come_during_a_step_are_counted_at_once() -> None:
    executor = ScriptedExecutor(gate=(gate := threading.Event()))
    with EngineRun(executor) as run:
        run.submit([3], 5)
        run.wait_until(lambda: executor.plans, "the first step")
        for num_open in (2, 3, 4):
            run.submit([3], 5)
            snapshot = run.engine.snapshot()
            assert (snapshot.num_open, snapshot.num_running, snapshot.num_waiting) == (num_open, 1, num_open - 1)
        gate.set()
        assert run.engine.drain(20.0) is True
        assert run.engine.snapshot().num_open == 0


def test_a_slow_step_is_logged_with_what_was_in_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("hasten.engine.engine.SLOW_STEP_S", 0.04)
    with EngineRun(ScriptedExecutor(token_s=0.01)) as run:
        run.tokens(run.submit([3, 4, 5, 6, 7], 1))
    assert "step 1 took 0." in caplog.text
    assert "1 requests, 5 tokens; 1 requests are open" in caplog.text
    caplog.clear()
    monkeypatch.undo()
    with EngineRun(ScriptedExecutor(token_s=0.01)) as run:
        run.tokens(run.submit([3, 4, 5, 6, 7], 1))
    assert caplog.text == ""


def test_drain_of_an_engine_that_never_started_does_not_wait() -> None:
    with EngineRun(ScriptedExecutor(), start=False) as run:
        request = run.submit([3], 5)
        assert run.engine.drain(0.0) is False
        run.start()
        assert len(run.tokens(request)) == 5
