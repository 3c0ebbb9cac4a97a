"""Uvicorn's HTTP/1.1 protocol, made to answer requests that offer an upgrade (h2c, WebSocket) as if they did not.

RFC 9110, 7.8: a server may ignore `Upgrade`. The parser below uvicorn cannot: it ends such a request after its head and
leaves the body unparsed. Java's HttpClient offers h2c with every first request.
"""

from __future__ import annotations

import contextlib

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class PlainHttpProtocol(HttpToolsProtocol):
    """Where the parser stops for an upgrade, a fresh one reads the same head again, without its Upgrade header.

    The head is written anew from what the parser made of it, so it does not matter how it was cut into packets.
    """

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                if not self._ignores_upgrade():  # CONNECT, which is answered like any unknown method
                    return
                data = self._head_without_upgrade() + data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                with contextlib.suppress(AttributeError):  # as uvicorn's own parser; httptools has it from 0.6.3 on
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def on_headers_complete(self) -> None:
        if not self._ignores_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._ignores_upgrade():
            super().on_message_complete()

    def _ignores_upgrade(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        request_line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%s: %s\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"".join((request_line, *fields, b"\r\n"))
