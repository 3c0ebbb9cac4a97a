"""What went wrong → HTTP status and OpenAI's error shape; the only place that knows both."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hasten import errors
from hasten.server.protocol import ErrorAnswer, ErrorBody
from hasten.server.quoting import cut

logger = logging.getLogger("hasten.server")

RETRY_AFTER_S = 5  # a drained server is usually replaced within seconds; nothing finer is known yet
_LONG_NUMBER = re.compile(r"(\d{40})\d+")  # JSON's numbers have no limit, and errors show them
MAX_TEMPLATE_WORDS = 500  # a template may say what it likes, the client's message included


@dataclass(frozen=True, slots=True)
class Row:
    """How one class of error is answered."""

    status: int
    type: str
    code: str | None = None


# The first row whose class matches answers, so subclasses stand before their bases.
TABLE: tuple[tuple[type[BaseException], Row], ...] = (
    (errors.InvalidRequest, Row(400, "invalid_request_error")),
    (errors.UnknownModel, Row(404, "invalid_request_error", "model_not_found")),
    (errors.Unauthorized, Row(401, "invalid_request_error", "invalid_api_key")),
    (errors.ForbiddenOrigin, Row(403, "invalid_request_error", "origin_not_allowed")),
    (errors.BodyTooLarge, Row(413, "invalid_request_error", "request_too_large")),
    (errors.UsageError, Row(400, "invalid_request_error")),
    (errors.EngineStopped, Row(503, "server_error", "engine_stopped")),
    (errors.DoesNotFit, Row(503, "server_error", "does_not_fit")),
    (errors.HastenError, Row(500, "server_error", "internal_error")),
)
_INTERNAL = Row(500, "server_error", "internal_error")
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def describe(error: BaseException) -> tuple[int, ErrorAnswer]:
    """Status and body for an error. What is not a HastenError stays unnamed to the client; the log has it."""
    row = next((row for cls, row in TABLE if isinstance(error, cls)), _INTERNAL)
    message = str(error)
    if not isinstance(error, errors.HastenError):
        message = "the server failed while answering; its log says more"
    if isinstance(error, errors.InvalidRequest):
        message = _LONG_NUMBER.sub(r"\1…", message)
    if isinstance(error, errors.TemplateError):
        message = cut(message, MAX_TEMPLATE_WORDS)
    param = getattr(error, "param", None)
    if isinstance(error, errors.UnknownModel):
        param = "model"
    return row.status, ErrorAnswer(ErrorBody(message, row.type, param, getattr(error, "code", None) or row.code))


def error_response(error: BaseException) -> Response:
    """The HTTP answer to an error."""
    status, answer = describe(error)
    return json_response(answer, status, headers=_headers(status))


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`body` (a struct, dataclass or builtin) as JSON."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def on_hasten_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for HastenError."""
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {cut(request.url.path)}: {error.detail}"
    body = ErrorAnswer(ErrorBody(message, "invalid_request_error", None, _HTTP_CODES.get(error.status_code)))
    return json_response(body, error.status_code, headers=error.headers)


async def on_client_gone(request: Request, error: Exception) -> Response:
    """The client left before its body was complete: nobody reads this, and it is nothing to log."""
    return Response(status_code=400)


class AnyError:
    """ASGI middleware: a bug is logged with its traceback, and told without it.

    Starlette would answer outside of every middleware, so without the headers that CORS adds.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def watched(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            logger.error("%s %s failed", scope.get("method", ""), cut(scope.get("path", "")), exc_info=error)
            if is_started:
                raise  # the HTTP server cuts the connection: there is no other way left to say that it failed
            await error_response(error)(scope, receive, send)


def _headers(status: int) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status == 503:
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {}
