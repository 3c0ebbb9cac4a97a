"""Uvicorn's HTTP/1.1 protocol with an end to its patience, and how uvicorn is set up.

Requests that offer an upgrade (h2c, WebSocket) are answered as if they did not. RFC 9110, 7.8: a server may ignore `Upgrade`.
The parser below uvicorn cannot: it ends such a request after its head and leaves the body unparsed. Java's HttpClient
offers h2c with every first request. And a head without end is refused: neither the parser nor uvicorn would.
"""

from __future__ import annotations

import contextlib
from typing import Any

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 << 10  # request line and headers; trailers likewise
MAX_AHEAD = 16  # requests of a connection that wait for the one before them; at most 2 MiB
BACKLOG = 2048
KEEP_ALIVE_S = 60  # clients keep idle connections for less; ours must not close first


def http_config(app: ASGIApp, *, access_log: bool = False) -> uvicorn.Config:
    """How hasten serves an app."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=PlainHttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=access_log,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=0,
    )


class PlainHttpProtocol(HttpToolsProtocol):
    """Where the parser stops for an upgrade, a fresh one reads the same head again, without its Upgrade header.

    The head is written anew from what the parser made of it, so it does not matter how it was cut into packets. Neither does
    it for the limit: a head that is complete is measured, and of what the parser keeps to itself (an unfinished head, trailers,
    extensions of a chunk) the packets are counted since it last gave something out.

    A client that leaves ends the request that runs, also when the next one came behind it (pipelining; RFC 9112, 9.3.2):
    uvicorn knows the last one only, and stops reading, so it would not even see the end of the connection. MAX_AHEAD
    requests, their bodies up to uvicorn's high water mark, are read ahead; with more the end is seen when some are answered.
    """

    _gave_out = False  # by the parser, from this packet
    _kept_bytes = 0
    _running: RequestResponseCycle | None = None  # the one whose answer is due

    def connection_lost(self, exc: Exception | None) -> None:
        self.pipeline.clear()  # nobody waits for those answers
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    @property
    def is_sending(self) -> bool:
        """An answer has begun and is not wholly in the kernel's hands."""
        running = self._running
        begun = running is not None and running.response_started and not running.response_complete
        return begun or bool(self.transport.get_write_buffer_size())

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        self._gave_out = False
        self._feed(data)
        self._kept_bytes = 0 if self._gave_out else self._kept_bytes + len(data)
        if self._kept_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def _refuse_head(self) -> None:
        if self.transport.is_closing():
            return
        text = f"The request line and headers are longer than {MAX_HEAD_BYTES} bytes."
        head = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n"
        cycle = self.cycle
        if not self.pipeline and (cycle is None or cycle.response_complete or not cycle.response_started):
            # else an answer is under way, and this is no part of it
            self.transport.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
        self.transport.close()

    def _feed(self, data: bytes) -> None:
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
        self._gave_out = True
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse_head()
        elif not self._ignores_upgrade():
            super().on_headers_complete()
            if 1 <= len(self.pipeline) <= MAX_AHEAD:
                self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._gave_out = True
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._gave_out = True
        if not self._ignores_upgrade() and not self.transport.is_closing():
            super().on_message_complete()

    def _ignores_upgrade(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        request_line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%s: %s\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"".join((request_line, *fields, b"\r\n"))
