"""Requests that offer an upgrade (Java's HttpClient: h2c, browsers: WebSocket) are answered as if they did not."""

from __future__ import annotations

import json
import select
import time

import msgspec
import pytest

from tests.server.refusals import TEXT
from tests.server.running import MODEL, RunningServer

BODY = json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": 3, "ignore_eos": True}).encode()


def offering(protocol: bytes, *, chunked: bool = False, close: bool = False) -> bytes:
    connection = b"Upgrade, HTTP2-Settings" + (b", close" if close else b"")
    head = b"POST %s HTTP/1.1\r\nConnection: %s\r\nHost: x\r\n" % (TEXT.encode(), connection)
    head += b"HTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: %s\r\nContent-Type: application/json\r\n" % protocol
    if chunked:
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    return head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


def answers(server: RunningServer, packets: list[bytes], num_answers: int, pause_s: float = 0.0) -> None:
    """Sends the packets on one connection; each answer must be that of a plain request."""
    with server.raw() as connection:
        for packet in packets:
            connection.sendall(packet)
            time.sleep(pause_s)
        reply = b""
        while reply.count(b"[DONE]") + reply.count(b'"hasten":') < num_answers:
            received = connection.recv(65536)
            assert received, reply
            reply += received
    assert reply.count(b"HTTP/1.1 200 OK") == num_answers, reply
    assert reply.count(msgspec.json.encode(server.answer("Hi", 3))) == num_answers, reply


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_upgrade_is_ignored(server: RunningServer, protocol: bytes, chunked: bool) -> None:
    answers(server, [offering(protocol, chunked=chunked)], 1)


def test_however_the_request_is_cut_into_packets(server: RunningServer) -> None:
    request = offering(b"h2c")
    for size in (1, 7, 100):
        answers(server, [request[i : i + size] for i in range(0, len(request), size)], 1, pause_s=0.0002)
    end_of_head = request.index(b"\r\n\r\n") + 4
    for cut in (end_of_head - 2, end_of_head, end_of_head + 5):
        answers(server, [request[:cut], request[cut:]], 1, pause_s=0.02)


def test_several_on_one_connection(server: RunningServer) -> None:
    answers(server, [offering(b"h2c") + offering(b"websocket", chunked=True)], 2)
    answers(server, [offering(b"h2c"), offering(b"h2c", close=True)], 2, pause_s=0.05)


def test_without_a_body_and_connect(server: RunningServer) -> None:
    response = server.http.get("/health", headers={"connection": "Upgrade", "upgrade": "h2c"})
    assert response.status_code == 200
    with server.raw() as connection:
        connection.sendall(b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n")
        connection.settimeout(2)
        assert not connection.recv(1000).startswith(b"HTTP/1.1 200")
    with server.raw() as connection:  # refused when its head is read again
        connection.sendall(b"GET /%ff%[ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        connection.settimeout(2)
        assert connection.recv(1000).startswith(b"HTTP/1.1 4")
    server.check_alive()


HEAD = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" % TEXT.encode()
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(BODY), BODY)
WITHOUT_END = {
    "request line": b"GET /",
    "header": b"GET /health HTTP/1.1\r\nHost: x\r\nA: ",
    "second head": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nA: ",
    "trailer": CHUNKED + b"0\r\nA: ",
    "chunk extension": CHUNKED + b"1;",
}


@pytest.mark.parametrize("start", WITHOUT_END.values(), ids=WITHOUT_END)
def test_what_never_ends_is_refused(server: RunningServer, start: bytes) -> None:
    reply = b""
    with server.raw() as connection:
        connection.sendall(start)
        num_sent = 0
        try:
            while b" 431 " not in reply and num_sent < 64 << 20:  # far more than lies between us: at the end it was read
                connection.sendall(b"x" * 4096)
                num_sent += 4096
                if select.select([connection], [], [], 0)[0]:
                    reply += connection.recv(4096)
        except OSError:  # it has closed; what it said may be lost with the connection
            pass
    assert num_sent < 64 << 20, "it was read to its end"
    server.check_alive()


@pytest.mark.parametrize("kind", ["request line", "header"])
def test_the_client_is_told(server: RunningServer, kind: str) -> None:
    with server.raw() as connection:
        connection.sendall(WITHOUT_END[kind] + b"x" * 66_000)  # over the limit, and no more: a reset would lose the answer
        reply = b""
        while b"65536 bytes" not in reply:
            received = connection.recv(4096)
            assert received, reply
            reply += received
    assert b"HTTP/1.1 431 " in reply


@pytest.mark.parametrize("size", [100_000, 10_000])
def test_a_long_head_is_refused_in_one_piece_and_in_many(server: RunningServer, size: int) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: x\r\nCookie: " + b"x" * 70_000 + b"\r\n\r\n"
    with server.raw() as connection:
        for i in range(0, len(request), size):
            connection.sendall(request[i : i + size])
        assert connection.recv(1000).startswith(b"HTTP/1.1 431 ")
    server.check_alive()


@pytest.mark.parametrize("size", [100_000, 10_000])
def test_a_head_below_the_limit_is_read_in_one_piece_and_in_many(server: RunningServer, size: int) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: x\r\nCookie: " + b"x" * 60_000 + b"\r\n\r\n"
    with server.raw() as connection:
        for i in range(0, len(request), size):
            connection.sendall(request[i : i + size])
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_a_long_body_has_a_limit_of_its_own(server: RunningServer) -> None:
    """Body bytes are given out as they come, so they never count."""
    body = json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": 3, "ignore_eos": True, "user": "x" * 300_000}).encode()
    with server.raw() as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
        for i in range(0, len(body), 10_000):
            connection.sendall(body[i : i + 10_000])
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
