"""API keys: who may ask, as pure ASGI middleware."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from hasten.errors import Unauthorized
from hasten.server.errors import error_response

# probes of orchestrators carry no key; the page at / is static and asks for the key itself
OPEN_PATHS = frozenset({"/health", "/ready", "/"})
CLIENT_KEY = "hasten.client_key"  # in the ASGI scope: digest of the key that asked, b"" when no key is needed


def configured_keys(api_key: Sequence[str]) -> tuple[str, ...]:
    """Each key once, without empty ones."""
    return tuple(dict.fromkeys(key for key in api_key if key))


class ApiKeys:
    """Lets a request through when it carries one of `keys` as a Bearer token, or when there are none.

    Digests of equal length are compared, all of them, so that the time taken says nothing about any key.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self.digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[CLIENT_KEY] = b""
            if self.digests and scope["path"] not in OPEN_PATHS:
                given = _bearer_token(scope)
                matches = [hmac.compare_digest(_digest(given), digest) for digest in self.digests]
                if not any(matches):
                    error = Unauthorized(
                        "the API key is wrong" if given else "an API key is needed: send Authorization: Bearer KEY"
                    )
                    await error_response(error)(scope, receive, send)
                    return
                scope[CLIENT_KEY] = self.digests[matches.index(True)]
        await self.app(scope, receive, send)


def _bearer_token(scope: Scope) -> bytes:
    header: bytes = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, token = header.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
