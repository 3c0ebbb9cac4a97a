"""EngineClient for an engine in this process: its thread on one side, an asyncio loop on the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from hasten.engine.engine import Engine
from hasten.engine.stats import EngineStats
from hasten.request import EngineRequest, RequestId, SamplingParams, TokenEvent

_log = logging.getLogger(__name__)


class LocalClient:
    """Implements EngineClient. The loop is woken once per engine step, whatever the number of streams.

    Starts the engine on first use, or by `start`, in the loop that runs then; it serves that loop only.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[RequestId, asyncio.Queue[TokenEvent]] = {}

    def start(self) -> None:
        """Start the engine for the running loop; nothing if that was done. Raises RuntimeError in another loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self.engine.start(self._on_events)
        elif self._loop is not loop:
            raise RuntimeError("this client serves another event loop")

    def resolve(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """`params` with seed and max_tokens as the engine will use them: what a reply names."""
        return self.engine.resolve(params, num_prompt_tokens)

    async def submit(self, request: EngineRequest) -> RequestId:
        self.start()
        request_id = self.engine.submit(request)
        # in time: events come through the loop, which runs this coroutine now
        self._queues[request_id] = asyncio.Queue()
        return request_id

    def stream(self, request_id: RequestId) -> AsyncIterator[TokenEvent]:
        """Raises KeyError for an id that was not submitted here, or whose stream is over or abandoned."""
        return self._stream(request_id, self._queues[request_id])

    def cancel(self, request_id: RequestId) -> None:
        self.engine.cancel(request_id)

    def stats(self) -> EngineStats:
        return self.engine.snapshot()

    async def drain(self, grace_s: float) -> bool:
        return await asyncio.to_thread(self.engine.drain, grace_s)

    async def close(self) -> None:
        """Cancel what is open and end the engine's thread. The executor stays open: it belongs to who made it."""
        try:
            await asyncio.to_thread(self.engine.stop)
        except RuntimeError:
            # the interpreter is going down and its thread pools take no more work; nobody is left who would want this loop
            self.engine.stop()

    async def _stream(self, request_id: RequestId, queue: asyncio.Queue[TokenEvent]) -> AsyncIterator[TokenEvent]:
        try:
            while True:
                event = await queue.get()
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self._queues.pop(request_id, None)  # later events of an abandoned stream are dropped

    def _on_events(self, events: Sequence[TokenEvent]) -> None:
        """On the engine's thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._dispatch, events)
        except RuntimeError:  # the loop is closed: nobody listens any more
            _log.debug("dropped %d events, the event loop is closed", len(events))

    def _dispatch(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            queue = self._queues.get(event.request_id)
            if queue is not None:
                queue.put_nowait(event)
