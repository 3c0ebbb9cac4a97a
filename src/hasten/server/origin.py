"""Which web pages may use the server: a browser carries a request for any page that it shows, also to 127.0.0.1.

A page cannot read the answer of a server that does not allow it (CORS), but it can make a server without keys work; and a
page whose name is made to mean 127.0.0.1 (DNS rebinding) counts as the server's own. Source: Fetch standard, "HTTP-network
fetch": a browser sends `Origin` with every POST; programs that are no browser send none.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from hasten.errors import ForbiddenOrigin
from hasten.server.errors import error_response
from hasten.server.quoting import cut


class OwnPagesOnly:
    """Refuses a request of a web page that is neither the server's own nor in `origins` ("*": all are).

    Args:
        is_local: the server listens on this machine only, so its own page has an IP address or `localhost` in its name.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], is_local: bool) -> None:
        self.app = app
        self.origins = frozenset(origins)
        self.is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"origin", b"host")}
            origin = headers.get(b"origin")
            if origin is not None and not self._allows(origin, headers.get(b"host", "")):
                await error_response(
                    ForbiddenOrigin(
                        f"a web page of {cut(origin)!r} may not use this server: --cors allows it (or start it with an API key)"
                    )
                )(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _allows(self, origin: str, host: str) -> bool:
        if origin in self.origins or "*" in self.origins:
            return True
        scheme, _, name = origin.partition("://")
        return scheme in ("http", "https") and name == host.lower() and (not self.is_local or _is_local_name(name))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local_name(name: str) -> bool:
    """Whether `name` (host, or host:port) is an address or localhost: what no foreign name server can give a meaning."""
    try:
        host = urlsplit(f"//{name}").hostname or ""
        return host == "localhost" or bool(ipaddress.ip_address(host))
    except ValueError:
        return False
