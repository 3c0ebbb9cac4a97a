"""EngineClient: what the server knows of an engine. Local here; an upstream HTTP engine or a Ray handle implement it too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from hasten.request import EngineRequest, RequestId, TokenEvent


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges and counters since start; cheap to read from any thread."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    num_steps: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    num_finished: Mapping[str, int]  # by finish reason
    last_step_ms: float
    step_ms_sum: float


class EngineClient(Protocol):
    """One engine, seen from the HTTP loop. Every method is called on the loop's thread."""

    async def submit(self, request: EngineRequest) -> RequestId:
        """Queue a request. Raises InvalidRequest/PromptTooLong (never fits) or EngineStopped."""
        ...

    def stream(self, request_id: RequestId) -> AsyncIterator[TokenEvent]:
        """Events of one request, the last one with finish_reason. Abandoning the iterator does not cancel."""
        ...

    def cancel(self, request_id: RequestId) -> None:
        """Stop within one step; the stream ends with CANCELLED. Unknown and finished ids are ignored."""
        ...

    def stats(self) -> EngineStats: ...

    async def drain(self, grace_s: float) -> bool:
        """Take no more requests, wait for running ones; False if some had to be cancelled when the time was over."""
        ...
