"""What an HTTP client may cost before its request is understood: the size of the body, as pure ASGI middleware."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hasten.errors import BodyTooLarge, InvalidRequest
from hasten.server.errors import error_response
from hasten.server.quoting import cut


class BodyLimit:
    """Refuses a body over `max_body_bytes`: by its Content-Length before a byte is read, else as the bytes come.

    Bytes of a refused body that still arrive are dropped by the HTTP server, so that the client can read the answer.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        # the HTTP parser lets only digits through, and refuses absurd numbers of them itself
        if int(announced) > self.max_body_bytes:
            await error_response(self._error(f"{int(announced)} bytes"))(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self.max_body_bytes:
                raise self._error("longer")
            return message

        await self.app(scope, counted, send)

    def _error(self, what: str) -> BodyTooLarge:
        return BodyTooLarge(f"the body is {what}, the limit is {self.max_body_bytes} bytes: --max-body sets it")


def check_content_type(content_type: str | None) -> None:
    """Raises InvalidRequest unless the body is announced as JSON, or not announced at all."""
    media_type = (content_type or "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (media_type.startswith("application/") and media_type.endswith("+json")):
        raise InvalidRequest(
            f"Content-Type is {cut(media_type)!r}: send JSON with Content-Type: application/json", code="invalid_content_type"
        )
