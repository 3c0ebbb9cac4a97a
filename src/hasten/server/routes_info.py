"""The endpoints that say something: models, tokens, health, metrics, configuration, ledgers, the page."""

from __future__ import annotations

import asyncio
import dataclasses

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from hasten import __version__
from hasten.errors import EngineStopped, InvalidRequest
from hasten.request import SamplingParams
from hasten.server import dashboard, metrics
from hasten.server.auth import CLIENT_KEY
from hasten.server.errors import error_response, json_response
from hasten.server.fields import refuse_unknown
from hasten.server.json_body import decode
from hasten.server.prepare import plain_messages
from hasten.server.protocol import (
    DetokenizeAnswer,
    DetokenizeRequest,
    ErrorAnswer,
    ErrorBody,
    ModelCard,
    ModelList,
    TokenizeAnswer,
    TokenizeRequest,
)
from hasten.server.quoting import cut
from hasten.server.routes import read_json
from hasten.server.settings import printable
from hasten.server.state import ServerState
from hasten.server.tokenizing import chat_token_ids, text_of, token_texts
from hasten.tokenizer.tokenizer import INLINE_CHARS

# tokenizing runs at a megabyte or so a second, and nobody's request may take that long for nothing
MAX_TOKENIZE_CHARS = 2**20


def _state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


async def models(request: Request) -> Response:
    """GET /v1/models"""
    return json_response(ModelList([_card(_state(request), name) for name in _state(request).model_names]))


async def model(request: Request) -> Response:
    """GET /v1/models/{id}"""
    state = _state(request)
    return json_response(_card(state, state.check_model(request.path_params["model"])))


def _card(state: ServerState, name: str) -> ModelCard:
    return ModelCard(name, state.created_s, state.limits.max_tokens_total)


async def tokenize(request: Request) -> Response:
    """POST /tokenize: ids of a text, or of a conversation as the template writes it."""
    state = _state(request)
    data, names = await read_json(request)
    body = decode(data, TokenizeRequest)
    refuse_unknown(data, names, TokenizeRequest)
    if body.model is not None:
        state.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("send either prompt or messages", param="prompt")
    if body.prompt is None:
        messages = await plain_messages(body.messages)
        token_ids = await chat_token_ids(state, messages, add_generation_prompt=body.add_generation_prompt is not False)
    else:
        token_ids = await _tokenize_text(state, body.prompt, body.add_special_tokens is not False)
    answer = TokenizeAnswer(len(token_ids), state.limits.max_tokens_total, token_ids)
    if body.return_token_strs:
        answer.token_strs = await token_texts(state, token_ids)
    return json_response(answer)


async def _tokenize_text(state: ServerState, text: str, add_special_tokens: bool) -> list[int]:
    if len(text) > MAX_TOKENIZE_CHARS:
        raise InvalidRequest(
            f"prompt has {len(text)} characters, the limit of /tokenize is {MAX_TOKENIZE_CHARS}: send it in parts",
            param="prompt",
        )
    if len(text) <= INLINE_CHARS:
        return state.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(state.tokenizer.encode, text, add_special_tokens=add_special_tokens)


async def detokenize(request: Request) -> Response:
    """POST /detokenize: the text of ids, control tokens included."""
    state = _state(request)
    data, names = await read_json(request)
    body = decode(data, DetokenizeRequest)
    refuse_unknown(data, names, DetokenizeRequest)
    if body.model is not None:
        state.check_model(body.model)
    if body.tokens is None:
        raise InvalidRequest("tokens is missing: send a list of ids", param="tokens")
    low, high = min(body.tokens, default=0), max(body.tokens, default=0)
    if low < 0 or high >= state.info.vocab_size:
        wrong = low if low < 0 else high
        raise InvalidRequest(f"token id {wrong} is outside the vocabulary (0 … {state.info.vocab_size - 1})", param="tokens")
    return json_response(DetokenizeAnswer(await text_of(state, body.tokens)))


async def health(request: Request) -> Response:
    """GET /health: the process lives and its engine has not failed; also while shutting down."""
    engine_error = _state(request).engine_error
    return json_response({"status": "ok"}) if engine_error is None else error_response(EngineStopped(engine_error))


async def version(request: Request) -> Response:
    """GET /version"""
    return json_response({"version": __version__})


async def ready(request: Request) -> Response:
    """GET /ready: new requests are taken; 503 while shutting down."""
    try:
        _state(request).check_accepting()
    except EngineStopped as error:
        return error_response(error)
    return json_response({"status": "ready"})


async def metrics_page(request: Request) -> Response:
    """GET /metrics"""
    return Response(_state(request).metrics.render(), headers={"content-type": metrics.CONTENT_TYPE})


async def config(request: Request) -> Response:
    """GET /config: what every automatic choice became. Keys are counted, not shown."""
    state = _state(request)
    server = {
        field.name: _shown(getattr(state.server_config, field.name))
        for field in dataclasses.fields(state.server_config)
        if field.name != "api_key"
    }
    defaults = {**dataclasses.asdict(SamplingParams()), **state.sampling_defaults}
    return json_response(
        {
            "models": state.model_names,
            "system_fingerprint": state.info.numerics_profile,
            "limits": dataclasses.asdict(state.limits),
            "memory": {
                "weight_bytes": state.info.weight_bytes,
                "kv_bytes": state.info.kv_bytes,
                "scratch_bytes": state.info.scratch_bytes,
                "num_blocks": state.info.num_blocks,
                "block_size": state.info.block_size,
            },
            "executor": dict(state.info.description),
            "engine": {
                name: "auto" if value is None else value for name, value in dataclasses.asdict(state.engine_config).items()
            },
            "reasons": dict(state.reasons),
            "server": server | {"num_api_keys": len(state.api_keys)},
            "sampling_defaults": {name: value for name, value in defaults.items() if value not in (None, ())},
        }
    )


def _shown(value: object) -> object:
    return printable(value) if isinstance(value, str) else value  # a path need not be UTF-8


async def explain(request: Request) -> Response:
    """GET /explain/{id}: the ledger of a recent answer, for the key that asked for it."""
    public_id = request.path_params["id"]
    ledgers = _state(request).ledgers.get(public_id, request.scope.get(CLIENT_KEY, b""))
    if ledgers is None:
        message = f"no recent answer has the id {cut(public_id)!r}"
        return json_response(ErrorAnswer(ErrorBody(message, "invalid_request_error", "id", "not_found")), 404)
    return json_response(ledgers[0] if len(ledgers) == 1 else ledgers)


async def page(request: Request) -> Response:
    """GET /"""
    headers = {"content-security-policy": dashboard.CONTENT_SECURITY_POLICY, "x-content-type-options": "nosniff"}
    return HTMLResponse(dashboard.page(_state(request)), headers=headers)


ROUTES = [
    Route("/v1/models", models),
    Route("/v1/models/{model:path}", model),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/health", health),
    Route("/ready", ready),
    Route("/version", version),
    Route("/metrics", metrics_page),
    Route("/config", config),
    Route("/explain/{id}", explain),
    Route("/", page),
]
