"""One streamed request: body out, answer in, every fact into a RequestRecord."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hasten.bench.answer import AnswerReader
from hasten.bench.connection import Connection, ConnectionPool, Endpoint
from hasten.bench.record import RequestRecord
from hasten.bench.trace import TraceRequest

_MAX_ERROR_BODY = 2000


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How requests are written."""

    model: str
    api_key: str | None = None
    timeout_s: float = 600.0
    include_usage: bool = True
    keep_text: bool = False
    documents_field: bool = False  # send documents under `hasten`; False: put them into the prompt
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()


def request_body(request: TraceRequest, options: ClientOptions) -> tuple[str, bytes]:
    """Path below the base, and the JSON body."""
    body: dict[str, Any] = {"model": options.model, "stream": True}
    if options.include_usage:
        body["stream_options"] = {"include_usage": True}
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.messages is not None:
        path, messages = "/v1/chat/completions", request.messages
        if request.documents and not options.documents_field:
            messages = [{"role": "system", "content": documents_text(request.documents)}, *messages]
        body["messages"] = messages
    else:
        path = "/v1/completions"
        prompt: Any = request.prompt if request.prompt is not None else request.prompt_tokens
        if request.documents and not options.documents_field and isinstance(prompt, str):
            prompt = f"{documents_text(request.documents)}\n\n{prompt}"
        body["prompt"] = prompt
    if request.documents and options.documents_field:
        body["hasten"] = {"documents": request.documents}
    body.update(options.params)
    body.update(request.params)
    return path, msgspec.json.encode(body)


def documents_text(documents: list[Any]) -> str:
    """Documents as plain text, numbered; a document is a string or an object with `text`."""
    texts = [str(document.get("text", "")) if isinstance(document, dict) else str(document) for document in documents]
    return "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(texts, start=1))


def encode_request(endpoint: Endpoint, path: str, body: bytes, request_id: str, options: ClientOptions) -> bytes:
    """The bytes of one HTTP request."""
    head = [
        f"POST {endpoint.base_path}{path} HTTP/1.1",
        f"Host: {endpoint.host_header}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Content-Length: {len(body)}",
        f"X-Request-Id: {request_id}",
    ]
    if options.api_key:
        head.append(f"Authorization: Bearer {options.api_key}")
    head.extend(f"{name}: {value}" for name, value in options.headers)
    return ("\r\n".join(head) + "\r\n\r\n").encode() + body


class _Exchange:
    """Listens to one connection for one request."""

    def __init__(self, record: RequestRecord, *, keep_text: bool) -> None:
        self.record = record
        self.reader = AnswerReader(record, keep_text=keep_text)
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.any_byte = False
        self._plain: list[bytes] | None = None  # the body of an answer that is no stream

    def on_headers(self, status: int, headers: dict[bytes, bytes], now_ns: int) -> None:
        self.any_byte = True
        self.record.status = status
        self.record.headers_ns = now_ns
        if status != 200:
            self.record.error = f"http_{status}"
            self._plain = []
        elif b"event-stream" not in headers.get(b"content-type", b""):
            self.record.error = "not_streamed"
            self._plain = []

    def on_body(self, data: bytes, now_ns: int) -> None:
        if self._plain is not None:
            if sum(map(len, self._plain)) < _MAX_ERROR_BODY:
                self._plain.append(data)
            return
        self.reader.feed(data, now_ns)
        if self.reader.done:
            self._finish(now_ns)

    def on_complete(self, now_ns: int) -> None:
        if self._plain is not None:
            self.record.error_detail = b"".join(self._plain)[:300].decode("utf-8", "replace")
        else:
            self.reader.end(now_ns)
        self._finish(now_ns)

    def on_lost(self, error: Exception | None, now_ns: int) -> None:
        if self.finished.done():
            return
        if self.record.error is None:
            if error is None and self.any_byte:
                self.record.error = "truncated"
                self.record.error_detail = f"the connection closed after {len(self.record.chunk_ns)} chunks"
            else:
                self.record.error = "reset"
                self.record.error_detail = str(error) if error else "the connection closed before an answer"
        self._finish(now_ns)

    def on_bug(self, error: BaseException) -> None:
        if not self.finished.done():
            self.finished.set_exception(error)

    def _finish(self, now_ns: int) -> None:
        if not self.finished.done():
            self.record.end_ns = now_ns
            self.finished.set_result(None)


class BenchClient:
    """Sends requests over a pool of kept connections."""

    def __init__(self, endpoint: Endpoint, options: ClientOptions, *, max_connections: int = 100_000) -> None:
        self.endpoint = endpoint
        self.options = options
        self.pool = ConnectionPool(endpoint, max_connections=max_connections)

    def encode(self, request: TraceRequest, request_id: str) -> bytes:
        """The bytes of `request`. `request_id` (sent as X-Request-Id) must be unique among all clients of the server."""
        path, body = request_body(request, self.options)
        return encode_request(self.endpoint, path, body, request_id, self.options)

    async def send(self, payload: bytes, record: RequestRecord) -> None:
        """Run one request to its end; never raises for what the server does: `record.error` says it."""
        connection: Connection | None = None
        record.ready_ns = time.perf_counter_ns()
        try:
            async with asyncio.timeout(self.options.timeout_s):
                for attempt in (0, 1):
                    opening_ns = time.perf_counter_ns()
                    connection = await self.pool.acquire(fresh=attempt > 0)
                    reused = connection.num_exchanges > 0
                    record.connect_ns = 0 if reused else time.perf_counter_ns() - opening_ns
                    exchange = _Exchange(record, keep_text=self.options.keep_text)
                    record.sent_ns = connection.start(payload, exchange)
                    await exchange.finished
                    if record.error == "reset" and reused and not exchange.any_byte and attempt == 0:
                        record.error, record.error_detail, record.retried = None, None, True
                        continue
                    break
                if self.options.keep_text:
                    record.text = "".join(exchange.reader.text)
        except TimeoutError:
            self._fail(record, connection, "timeout", f"no end after {self.options.timeout_s:g} s")
        except OSError as error:
            self._fail(record, connection, "connect", f"{type(error).__name__}: {error}")
        except asyncio.CancelledError:
            self._fail(record, connection, "interrupted", "the run was stopped")
            raise

    @staticmethod
    def _fail(record: RequestRecord, connection: Connection | None, error: str, detail: str) -> None:
        record.error, record.error_detail = error, detail
        record.end_ns = time.perf_counter_ns()
        if connection is not None:
            connection.abort()

    async def close(self) -> None:
        await self.pool.close()
