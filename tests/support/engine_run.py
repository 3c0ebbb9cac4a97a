"""An engine on a scripted executor, with every event kept, and its promises checked at the end."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from hasten.config import EngineConfig
from hasten.engine.engine import Engine
from hasten.request import EngineRequest, FinishReason, RequestId, SamplingParams, TokenEvent
from tests.support.scripted import ScriptedExecutor, greedy

WAIT_S = 20.0  # far more than anything here takes: a hang fails instead of blocking the run


class EngineRun:
    """Context manager. On leaving, the engine is stopped; no block may be held and every request has one end.

    With `start=False` the engine's thread waits for `start()`: what is submitted before it arrives together.
    """

    def __init__(self, executor: ScriptedExecutor, *, start: bool = True, **config: Any) -> None:
        self.executor = executor
        self._start = start
        self.engine = Engine(executor, EngineConfig(**config), debug=True)
        self.calls: list[list[TokenEvent]] = []  # one entry a listener call
        self._events: dict[RequestId, list[TokenEvent]] = defaultdict(list)
        self._news = threading.Condition()

    def __enter__(self) -> Self:
        if self._start:
            self.start()
        return self

    def start(self) -> None:
        self.engine.start(self._listen)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.executor.gate is not None:
            self.executor.gate.set()
        self.engine.stop()
        if error is None:
            self._check_ends()

    def submit(
        self, prompt: Sequence[int], sampling: SamplingParams | int | None = None, eos_token_ids: tuple[int, ...] = ()
    ) -> RequestId:
        params = sampling if isinstance(sampling, SamplingParams) else greedy(sampling)
        return self.engine.submit(EngineRequest(tuple(prompt), params, eos_token_ids))

    def events(self, request_id: RequestId) -> list[TokenEvent]:
        with self._news:
            return list(self._events[request_id])

    def wait(self, request_id: RequestId) -> TokenEvent:
        """The last event of a request."""
        self.wait_until(lambda: any(event.finish_reason for event in self._events[request_id]), f"the end of {request_id}")
        return self._events[request_id][-1]

    def wait_for_tokens(self, request_id: RequestId, num_tokens: int) -> None:
        self.wait_until(lambda: len(self._tokens(request_id)) >= num_tokens, f"{num_tokens} tokens of {request_id}")

    def wait_until(self, holds: Callable[[], object], what: str) -> None:
        give_up = time.monotonic() + WAIT_S
        with self._news:
            while not holds():
                assert time.monotonic() < give_up, f"{what}: waited {WAIT_S} s"
                self._news.wait(0.01)  # not all that is waited for comes with an event

    def tokens(self, request_id: RequestId) -> list[int]:
        """All tokens of a request, when it is over."""
        self.wait(request_id)
        return self._tokens(request_id)

    def step_ids(self, request_id: RequestId) -> list[int]:
        """Steps that had a chunk of the request."""
        return [plan.step_id for plan in self.executor.plans if any(c.request_id == request_id for c in plan.chunks)]

    def _tokens(self, request_id: RequestId) -> list[int]:
        return [token_id for event in self._events[request_id] for token_id in event.token_ids]

    def _listen(self, events: Sequence[TokenEvent]) -> None:
        with self._news:
            self.calls.append(list(events))
            for event in events:
                self._events[event.request_id].append(event)
            self._news.notify_all()

    def _check_ends(self) -> None:
        for request_id, events in self._events.items():
            ends = [event for event in events if event.finish_reason is not None]
            assert len(ends) == 1, f"request {request_id} ended {len(ends)} times"
            assert ends[0] is events[-1], f"request {request_id} has events after its end"
            assert (ends[0].error is not None) == (ends[0].finish_reason is FinishReason.ERROR)
        snapshot = self.engine.snapshot()
        assert snapshot.num_free_blocks == snapshot.num_blocks
        assert (snapshot.num_open, snapshot.num_running, snapshot.num_waiting) == (0, 0, 0)
        assert sum(snapshot.num_finished.values()) == len(self._events)
