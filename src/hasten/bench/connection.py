"""HTTP/1.1 connections whose bytes are stamped the moment the loop hands them over.

httptools on a bare asyncio protocol: docs/bench.md has the measured cost per chunk beside that of HTTP libraries.
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from hasten.errors import UsageError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is: scheme, host, port, and the path before `/v1`."""

    host: str
    port: int
    tls: bool
    base_path: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """From http://HOST:PORT, with or without a trailing /v1. Raises UsageError."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        raise UsageError(f"{url!r} has a port that is no number: write http://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not the address of a server: write http://HOST:PORT or https://HOST")
    tls = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Endpoint(parts.hostname, port or (443 if tls else 80), tls, base)


class Exchange(Protocol):
    """One request on a connection, told what comes back."""

    def on_headers(self, status: int, headers: dict[bytes, bytes], now_ns: int) -> None: ...
    def on_body(self, data: bytes, now_ns: int) -> None: ...
    def on_complete(self, now_ns: int) -> None: ...
    def on_lost(self, error: Exception | None, now_ns: int) -> None: ...
    def on_bug(self, error: BaseException) -> None: ...


class Connection(asyncio.Protocol):
    """One TCP (or TLS) connection; one exchange at a time."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._exchange: Exchange | None = None
        self._now_ns = 0
        self._aborted = False
        self.num_exchanges = 0
        self.closed = False

    def start(self, request: bytes, exchange: Exchange) -> int:
        """Send; returns the time of the hand-over to the socket."""
        assert self._transport is not None
        self._exchange = exchange
        self._headers = {}
        self.num_exchanges += 1
        sent_ns = time.perf_counter_ns()
        self._transport.write(request)
        return sent_ns

    def abort(self) -> None:
        self._exchange, self._aborted = None, True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # TCP_NODELAY is set by asyncio and uvloop

    def data_received(self, data: bytes) -> None:
        self._pool.arrived(self, data, time.perf_counter_ns())

    def parse(self, data: bytes, now_ns: int) -> None:
        """What came at `now_ns`."""
        if self._aborted:
            return
        self._now_ns = now_ns
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:  # raised by us: no fault of the server's
            exchange, self._exchange = self._exchange, None
            if exchange is not None:
                exchange.on_bug(error.__context__ or error)
            self.abort()
        except httptools.HttpParserError as error:
            self._lost(error)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.parse_arrived()  # what came before the end
        self.closed = True
        self._now_ns = time.perf_counter_ns()
        if self._exchange is not None and exc is None and not self._headers.get(b"transfer-encoding"):
            # an answer without a length ends with the connection
            exchange, self._exchange = self._exchange, None
            if self._headers and b"content-length" not in self._headers:
                exchange.on_complete(self._now_ns)
            else:
                exchange.on_lost(None, self._now_ns)
        self._lost(exc)
        self._pool.forget(self)

    def _lost(self, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_lost(error, self._now_ns)

    # httptools
    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._exchange is not None and self._parser.get_status_code() >= 200:
            self._exchange.on_headers(self._parser.get_status_code(), self._headers, self._now_ns)

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.on_body(body, self._now_ns)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # 100 Continue
            return
        exchange, self._exchange = self._exchange, None
        keep = self._parser.should_keep_alive()
        if exchange is not None:
            exchange.on_complete(self._now_ns)
        if keep and not self.closed:
            self._pool.give_back(self)
        elif self._transport is not None:
            self._transport.close()


class ConnectionPool:
    """Keeps finished connections open; at most `max_connections` at a time, waiters first come first served.

    A connection, or the room for one, goes from hand to hand: while anybody waits nothing is idle and no room is free, so
    nobody who comes later can be faster.
    """

    def __init__(self, endpoint: Endpoint, *, max_connections: int) -> None:
        self.endpoint = endpoint
        self._max = max_connections
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._num_opening = 0
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()  # None: room for a new one
        self._arrived: list[tuple[Connection, bytes, int]] = []
        self._ssl = ssl_module.create_default_context() if endpoint.tls else None

    def arrived(self, connection: Connection, data: bytes, now_ns: int) -> None:
        """Keep data that is stamped but not yet parsed: a batching server's streams are readable all at once, and the last of
        them must not wait for its stamp until the others are parsed."""
        self._arrived.append((connection, data, now_ns))
        if len(self._arrived) == 1:
            asyncio.get_running_loop().call_soon(self.parse_arrived)

    def parse_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        for connection, data, now_ns in arrived:
            connection.parse(data, now_ns)

    async def acquire(self, *, fresh: bool = False) -> Connection:
        """An idle connection or, with `fresh` or when there is none, a new one. Raises OSError."""
        first = fresh
        while True:
            has_room = fresh and self._reserve()
            connection = None if has_room else self._pop_idle()
            if connection is None and not has_room and not self._reserve():
                connection = await self._turn(first=first)
            if connection is None:
                return await self._connect()
            if connection.closed:  # between the hand-over and now
                first = True
            elif not fresh:
                return connection
            else:  # fresh wanted at the limit: take the room of this one
                self._open.discard(connection)
                self._num_opening += 1
                connection.abort()
                return await self._connect()

    def _reserve(self) -> bool:
        """Take room for a new connection, if there is any."""
        if len(self._open) + self._num_opening >= self._max:
            return False
        self._num_opening += 1
        return True

    def _pop_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    async def _turn(self, *, first: bool) -> Connection | None:
        """Wait for a connection, or for room (None); with `first` before all others."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        (self._waiters.appendleft if first else self._waiters.append)(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # the turn was ours; pass it on
                connection = waiter.result()
                if connection is None:
                    self._num_opening -= 1
                else:
                    self._idle.append(connection)
                self._wake()
            raise

    async def _connect(self) -> Connection:
        """Open one in room that is reserved."""
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self), self.endpoint.host, self.endpoint.port, ssl=self._ssl
            )
        except BaseException:
            self._num_opening -= 1
            self._wake()
            raise
        self._num_opening -= 1
        self._open.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        self._idle.append(connection)
        self._wake()

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake()

    def _wake(self) -> None:
        while self._waiters:
            if self._waiters[0].done():
                self._waiters.popleft()
                continue
            connection = self._pop_idle()
            if connection is None and not self._reserve():
                return
            self._waiters.popleft().set_result(connection)

    async def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)
