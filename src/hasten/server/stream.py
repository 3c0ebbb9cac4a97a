"""Sending a generation: as server-sent events or as one body, and noticing when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

from hasten.errors import HastenError
from hasten.request import FinishReason
from hasten.server.errors import describe, json_response
from hasten.server.generation import Generation, Piece
from hasten.server.protocol import Answer
from hasten.server.shapes import Shape, encode_event, finish_word, hasten_answer, usage_of, whole_answer

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the events back
]


class WholeAnswer:
    """ASGI response: the complete answer in one body."""

    def __init__(self, generation: Generation, shape: Shape) -> None:
        self.generation = generation
        self.shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _watched(self.generation, receive):
            await self.generation.start()
            await self.generation.whole()
            if self.generation.is_abandoned:
                return
            fingerprint = self.generation.state.info.numerics_profile
            answer = whole_answer(self.generation, self.shape, fingerprint)
            response = json_response(answer, headers={"x-request-id": request_id(self.generation)})
            await response(scope, receive, send)


class EventStream:
    """ASGI response: server-sent events, one write for all that became ready together.

    The headers wait for the first tokens, so that what fails before them is an ordinary HTTP error; what fails later is an
    event with `error`. While a slow client blocks the write, the choices collect their text and send it as one event.
    """

    def __init__(self, generation: Generation, shape: Shape) -> None:
        self.generation = generation
        self.shape = shape
        self._opened: set[int] = set()
        self._num_closed = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False
        async with _watched(self.generation, receive):
            try:
                await self.generation.start()
                async for pieces in self.generation.pieces():
                    if not is_started:
                        headers = [*_HEADERS, (b"x-request-id", request_id(self.generation).encode())]
                        await send({"type": "http.response.start", "status": 200, "headers": headers})
                        is_started = True
                    body = b"".join(self._events(pieces))
                    if self._num_closed == len(self.generation.choices):
                        body += self._usage() + DONE
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            except HastenError as error:
                if not is_started:
                    raise
                body = encode_event(describe(error)[1]) + DONE
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if is_started:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _events(self, pieces: list[Piece]) -> list[bytes]:
        events = []
        for piece in pieces:
            if piece.index not in self._opened:
                self._opened.add(piece.index)
                opening = self.shape.opening(piece.index)
                if opening is not None:
                    events.append(self._event([opening]))
            if piece.text or piece.logprobs:
                events.append(self._event([self.shape.chunk(piece)]))
            if piece.finish_reason is not None:
                events.append(self._closing(piece.index, piece.finish_reason))
        return events

    def _closing(self, index: int, reason: FinishReason) -> bytes:
        self._num_closed += 1
        is_last = self._num_closed == len(self.generation.choices)
        event = self._answer([self.shape.closing(index, finish_word(reason))])
        if is_last and not self.generation.job.include_usage:
            event.hasten = hasten_answer(self.generation.job, self.generation.ledgers())
        return encode_event(event)

    def _usage(self) -> bytes:
        if not self.generation.job.include_usage:
            return b""
        event = self._answer([])
        event.usage = usage_of(self.generation.choices)
        event.hasten = hasten_answer(self.generation.job, self.generation.ledgers())
        return encode_event(event)

    def _event(self, choices: list[object]) -> bytes:
        return encode_event(self._answer(choices))

    def _answer(self, choices: list[object]) -> Answer:
        job = self.generation.job
        answer = Answer(
            id=job.public_id,
            object=self.shape.chunk_object,
            created=job.created_s,
            model=job.model,
            system_fingerprint=self.generation.state.info.numerics_profile,
            choices=choices,
        )
        if job.include_usage:
            answer.usage = None  # OpenAI: null in every event but the last
        return answer


def request_id(generation: Generation) -> str:
    """What finds the request in logs and at /explain: the client's word for it, else the answer's id."""
    return generation.job.client_word or generation.job.public_id


@contextlib.asynccontextmanager
async def _watched(generation: Generation, receive: Receive) -> AsyncIterator[None]:
    """Abandon the generation as soon as the client disconnects, and whenever the block is left early."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.abandon()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        if not generation.is_finished:
            generation.abandon()
