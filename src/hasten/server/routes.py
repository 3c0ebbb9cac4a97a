"""The endpoints that generate: chat and text completions."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from hasten.server.auth import CLIENT_KEY
from hasten.server.fields import check_fields
from hasten.server.generation import Generation
from hasten.server.json_body import MAX_VALUES, decode, scan
from hasten.server.limits import check_content_type
from hasten.server.prepare import chat_job, completion_job
from hasten.server.protocol import ChatRequest, CompletionRequest, SamplingFields
from hasten.server.shapes import ChatShape, Shape, TextShape
from hasten.server.state import ServerState
from hasten.server.stream import EventStream, WholeAnswer

MAX_REQUEST_ID = 128

_T = TypeVar("_T", bound=SamplingFields)


async def read_json(request: Request) -> tuple[bytes, frozenset[str]]:
    """The body and the names of its top-level fields. Raises InvalidRequest, BodyTooLarge."""
    check_content_type(request.headers.get("content-type"))
    body = await request.body()
    state: ServerState = request.app.state.server
    # prompts of twice the context as ids must come through, to be refused with their length
    return body, await scan(body, max_values=max(MAX_VALUES, 2 * state.limits.max_model_len))


async def chat_completions(request: Request) -> ASGIApp:
    """POST /v1/chat/completions"""
    arrival_s = time.monotonic()
    parsed, warnings = await _parse(request, ChatRequest)
    job = await chat_job(request.app.state.server, parsed, arrival_s=arrival_s, warnings=warnings, **_client(request))
    return _respond(Generation(request.app.state.server, job), ChatShape(job))


async def completions(request: Request) -> ASGIApp:
    """POST /v1/completions"""
    arrival_s = time.monotonic()
    parsed, warnings = await _parse(request, CompletionRequest)
    job = await completion_job(request.app.state.server, parsed, arrival_s=arrival_s, warnings=warnings, **_client(request))
    return _respond(Generation(request.app.state.server, job), TextShape(job))


async def _parse(request: Request, kind: type[_T]) -> tuple[_T, list[str]]:
    """The body, which is free again when this returns, and warnings about it."""
    request.app.state.server.check_accepting()
    body, names = await read_json(request)
    return decode(body, kind), check_fields(body, names, kind)


def _client(request: Request) -> dict[str, Any]:
    """Who asks, and by what name. A name that could not be sent back in a header, or is long, is none."""
    word = request.headers.get("x-request-id", "")
    is_fine = len(word) <= MAX_REQUEST_ID and word.isascii() and word.isprintable()
    return {"client_key": request.scope.get(CLIENT_KEY, b""), "client_word": word.strip() if is_fine else ""}


def _respond(generation: Generation, shape: Shape) -> ASGIApp:
    return EventStream(generation, shape) if generation.job.stream else WholeAnswer(generation, shape)


ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
]
