"""What a drain waits for beside the engine: answers that are written and not yet read."""

from __future__ import annotations

import json
import signal
import socket
import time

import httpx
import pytest

from tests.server.process import Process, process

NUM_CHOICES = 2  # of 700 tokens with 20 alternatives each: 500 KB, far more than fits between server and client


def ask(server: Process, *, stream: bool) -> socket.socket:
    """A connection that has asked for a long answer and read nothing of it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    connection.settimeout(20)
    host, port = server.url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    fields = {"model": "toy", "prompt": "Hi", "ignore_eos": True, "max_tokens": 700, "logprobs": 20, "n": NUM_CHOICES}
    body = json.dumps(fields | {"stream": stream}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    connection.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
    return connection


def wait_written(server: Process) -> None:
    """Until the engine has nothing left to do."""
    deadline = time.monotonic() + 30
    while f'finished_reason="length",model_name="toy"}} {NUM_CHOICES}.0' not in httpx.get(server.url + "/metrics").text:
        assert time.monotonic() < deadline, "the answer was not written"
        time.sleep(0.05)


@pytest.mark.parametrize("stream", [False, True])
def test_fr_054_who_reads_slowly_gets_the_whole_answer(stream: bool) -> None:
    with process(step_s=0.0, grace_s=30) as server, ask(server, stream=stream) as connection:
        wait_written(server)
        server.signal(signal.SIGTERM)
        server.wait_draining()
        time.sleep(1.0)  # a reader that takes its time
        data = b""
        while received := connection.recv(65536):
            data += received
            if data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                break
        code, errors = server.wait(5)
        assert (code, errors) == (0, "")
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    if stream:
        assert data.count(b'"finish_reason":"length"') == NUM_CHOICES
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    else:
        assert len(body) > 300_000
        assert [choice["finish_reason"] for choice in json.loads(body)["choices"]] == ["length"] * NUM_CHOICES


@pytest.mark.parametrize("stream", [False, True])
def test_fr_054_who_does_not_read_holds_it_up_for_the_grace_time_only(stream: bool) -> None:
    with process(step_s=0.0, grace_s=0.5) as server, ask(server, stream=stream):
        wait_written(server)
        server.signal(signal.SIGTERM)
        code, errors = server.wait(0.5 + 1)
        assert (code, errors) == (0, "")


def test_half_a_request_holds_up_nothing() -> None:
    """A client that may never send the rest has no answer to wait for."""
    with process(step_s=0.0, grace_s=600) as server, socket.socket() as connection:
        host, port = server.url.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert server.post(max_tokens=2).status_code == 200  # by now the other has been seen
        server.signal(signal.SIGTERM)
        assert server.wait(20) == (0, "")


def test_an_interrupt_that_was_ignored_stays_ignored() -> None:
    """As `sh -c 'hasten serve … &'` starts it: Ctrl-C in that terminal is not for the server."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    try:
        with process(step_s=0.0, grace_s=5) as server:
            server.signal(signal.SIGINT)
            assert server.post(max_tokens=2).status_code == 200
            assert httpx.get(server.url + "/ready").status_code == 200
            server.signal(signal.SIGTERM)
            assert server.wait(5) == (0, "")
    finally:
        signal.signal(signal.SIGINT, before)
