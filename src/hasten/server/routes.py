"""The endpoints that generate: chat and text completions."""

from __future__ import annotations

import time
from typing import TypeVar

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
    body, parsed, warnings = await _parse(request, ChatRequest)
    del body
    state: ServerState = request.app.state.server
    job = await chat_job(state, parsed, arrival_s=arrival_s, warnings=warnings, client_key=request.scope.get(CLIENT_KEY, b""))
    return _respond(Generation(state, job), ChatShape(job))


async def completions(request: Request) -> ASGIApp:
    """POST /v1/completions"""
    arrival_s = time.monotonic()
    body, parsed, warnings = await _parse(request, CompletionRequest)
    del body
    state: ServerState = request.app.state.server
    job = await completion_job(
        state, parsed, arrival_s=arrival_s, warnings=warnings, client_key=request.scope.get(CLIENT_KEY, b"")
    )
    return _respond(Generation(state, job), TextShape(job))


async def _parse(request: Request, kind: type[_T]) -> tuple[bytes, _T, list[str]]:
    request.app.state.server.check_accepting()
    body, names = await read_json(request)
    parsed = decode(body, kind)
    return body, parsed, check_fields(body, names, kind)


def _respond(generation: Generation, shape: Shape) -> ASGIApp:
    return EventStream(generation, shape) if generation.job.stream else WholeAnswer(generation, shape)


ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
]
