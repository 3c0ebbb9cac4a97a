"""EngineClient: what the server knows of an engine. Local here; an upstream HTTP engine or a Ray handle implement it too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from hasten.engine.stats import EngineStats
from hasten.request import EngineRequest, RequestId, TokenEvent


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

    def stats(self) -> EngineStats:
        """At once, also of an engine that has failed: `failed` then says why."""
        ...

    async def drain(self, grace_s: float) -> bool:
        """Take no more requests, wait for running ones; False if some had to be cancelled when the time was over."""
        ...
