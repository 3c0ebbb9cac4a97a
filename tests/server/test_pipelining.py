"""Several requests on one connection without waiting for answers (pipelining): answered in order, and a client that leaves ends
the one that runs."""

from __future__ import annotations

import json
import logging
import time

import pytest

from hasten.server.http_protocol import MAX_AHEAD
from tests.server.running import MODEL, RunningServer, running_server, scripted
from tests.support.toy_tokenizer import toy

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def post(*, stream: bool, max_tokens: int) -> bytes:
    body = json.dumps(
        {"model": MODEL, "prompt": "Hi", "max_tokens": max_tokens, "ignore_eos": True, "stream": stream, "seed": 1}
    ).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


def wait_generated(server: RunningServer, num_tokens: int) -> None:
    deadline = time.monotonic() + 20
    while server.state.client.stats().num_generated_tokens < num_tokens:
        assert time.monotonic() < deadline, server.state.client.stats()
        time.sleep(0.002)


@pytest.mark.parametrize("behind", [HEALTH, post(stream=False, max_tokens=2000), HEALTH[:20], HEALTH * MAX_AHEAD])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_fr_052_a_request_behind_it_does_not_hide_that_the_client_left(
    stream: bool, at_once: bool, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    words = toy()
    executor = scripted(words, hold_after=5)  # only a cancel ends the sixth step
    with caplog.at_level(logging.WARNING), running_server(executor, words) as server:
        with server.raw() as connection:
            connection.sendall(post(stream=stream, max_tokens=2000) + (behind if at_once else b""))
            wait_generated(server, 5)
            connection.sendall(b"" if at_once else behind)
        server.wait_idle(20.0)
        assert server.state.client.stats().num_generated_tokens == 5, "the request behind it was run for nobody"
        executor.hold_after = None
        server.check_alive()
    assert not [record for record in caplog.records if record.name.startswith("hasten")]


@pytest.mark.parametrize("num_requests", [2, 2 * MAX_AHEAD])
def test_answers_come_in_order(num_requests: int) -> None:
    words = toy()
    with running_server(scripted(words), words) as server, server.raw() as connection:
        connection.sendall(b"".join(post(stream=False, max_tokens=1 + i) for i in range(num_requests)))
        reply = b""
        while reply.count(b'"total_tokens"') < num_requests:
            received = connection.recv(65536)
            assert received, reply
            reply += received
    assert reply.count(b"HTTP/1.1 200 OK") == num_requests
    places = [reply.index(b'"completion_tokens":%d,' % (1 + i)) for i in range(num_requests)]
    assert places == sorted(places)
