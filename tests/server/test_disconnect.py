"""A client that goes away stops its request within a step: while it streams, waits for a whole answer, prefills, queues."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest

from hasten.config import EngineConfig
from tests.server.running import MODEL, RunningServer, running_server, scripted
from tests.support.toy_tokenizer import toy


def send(server: RunningServer, *, stream: bool, **fields: Any) -> socket.socket:
    """A connection that has sent a request for 2,000 tokens."""
    fields = {"model": MODEL, "prompt": "Hi", "max_tokens": 2000, "ignore_eos": True, "stream": stream, **fields}
    body = json.dumps(fields).encode()
    connection = server.raw(receive_buffer=16384)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def wait_for(server: RunningServer, running: int = 0, waiting: int = 0, num_open: int = 0, num_generated: int = 0) -> None:
    """Until there are at least so many of each."""
    wanted = (running, waiting, num_open, num_generated)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        stats = server.state.client.stats()
        there = (stats.num_running, stats.num_waiting, stats.num_open, stats.num_generated_tokens)
        if all(a >= b for a, b in zip(there, wanted, strict=True)):
            return
        time.sleep(0.001)
    raise AssertionError(f"never {wanted} running, waiting, open and generated, but {there}")


def test_fr_052_a_hundred_disconnects_leave_nothing_behind() -> None:
    """Every answer stands still after its first tokens: only a cancel can end it."""
    words = toy()
    executor = scripted(words, hold_after=2)
    with running_server(executor, words) as server:
        for i in range(100):
            connection = send(server, stream=i % 2 == 0, n=1 + i % 3)
            if i % 2 == 0:
                assert b"200 OK" in connection.recv(4096)
            else:
                wait_for(server, num_open=1 + i % 3)
            connection.close()
            server.wait_idle(20.0)
        executor.hold_after = None
        assert server.complete(max_tokens=3).status_code == 200
        text = server.http.get("/metrics").text
        assert 'hasten_request_success_total{finished_reason="abort",model_name="toy"} 199.0' in text


@pytest.mark.parametrize("stream", [False, True])
def test_fr_052_disconnect_during_prefill(stream: bool) -> None:
    words, gate = toy(), threading.Event()
    # 40 steps of 16 prompt tokens, of which the first one stands still: only a cancel ends it
    executor = scripted(words, max_num_batched_tokens=16)
    with running_server(executor, words) as server:
        executor.gate = gate
        connection = send(server, stream=stream, prompt="a" * 640)
        wait_for(server, running=1)
        connection.close()
        server.wait_idle(20.0)
        assert executor.num_cancelled_steps == 1
        assert server.state.client.stats().num_generated_tokens == 0
        gate.set()


@pytest.mark.parametrize("stream", [False, True])
def test_fr_052_disconnect_in_the_queue(stream: bool) -> None:
    words = toy()
    executor = scripted(words, token_s=0.001)
    with running_server(executor, words, engine_config=EngineConfig(max_num_seqs=1)) as server:
        with send(server, stream=True, max_tokens=3500):  # runs for seconds, in short steps
            wait_for(server, running=1)
            second = send(server, stream=stream)
            wait_for(server, running=1, waiting=1)
            second.close()
            while server.state.client.stats().num_waiting:  # until the first one ends at the latest
                time.sleep(0.002)
            assert server.state.client.stats().num_running == 1
            assert {chunk.request_id for plan in executor.plans for chunk in plan.chunks} == {1}
        server.wait_idle(20.0)


def test_disconnect_stops_the_step_that_nobody_else_needs() -> None:
    words, gate = toy(), threading.Event()
    executor = scripted(words, gate=gate)
    with running_server(executor, words) as server:
        connection = send(server, stream=False)
        wait_for(server, running=1)
        connection.close()
        server.wait_idle(20.0)
        assert executor.num_cancelled_steps == 1
        gate.set()


def test_a_disconnect_does_not_disturb_the_others() -> None:
    words = toy()
    with running_server(scripted(words, step_s=0.002), words) as server:
        texts: list[str] = []
        body = {"prompt": "stays", "max_tokens": 80, "ignore_eos": True}
        thread = threading.Thread(target=lambda: texts.append(server.complete(**body).json()["choices"][0]["text"]))
        thread.start()
        for _ in range(10):
            connection = send(server, stream=True)
            connection.recv(100)
            connection.close()
        thread.join(10)
        assert texts == [server.answer("stays", 80)]


@pytest.mark.parametrize("num_clients", [1, 3])
def test_a_client_that_does_not_read_holds_up_nobody_and_loses_nothing(num_clients: int) -> None:
    """2,000 tokens with 20 alternatives each are 700 KB, of which what lies between server and client holds a quarter."""
    words, gate = toy(num_padding=32), threading.Event()
    executor = scripted(words, vocab_size=259, gate=gate, hold_after=900)
    with running_server(executor, words, send_buffer=16384) as server, ExitStack() as open_ones:
        connections = [
            open_ones.enter_context(send(server, stream=True, max_tokens=2000, logprobs=20)) for _ in range(num_clients)
        ]
        wait_for(server, num_open=num_clients)
        gate.set()
        wait_for(server, num_generated=900 * num_clients)  # 300 KB each: nothing more can be sent
        server.http.get("/health")  # when this is answered, the loop has written what it could
        executor.hold_after = None
        body = server.complete(prompt="abc", max_tokens=50, ignore_eos=True).json()
        assert body["choices"][0]["text"] == server.answer("abc", 50)
        server.wait_idle(20.0)  # their answers are done, and wait here
        for connection in connections:
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += connection.recv(65536)
            assert data.count(b"data: [DONE]") == 1
            events = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
            text = "".join(event["choices"][0]["text"] for event in events)
            assert text == server.answer("Hi", 2000)
            logprobs = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]]
            assert sum(len(part["tokens"]) for part in logprobs) == 2000
            assert max(len(part["tokens"]) for part in logprobs) > 1000  # what could not be sent was joined, not queued


def test_a_client_that_does_not_read_and_leaves_is_cancelled() -> None:
    words = toy(num_padding=32)
    executor = scripted(words, vocab_size=259, hold_after=1500)  # 500 KB: far more than fits between server and client
    with running_server(executor, words, send_buffer=16384) as server:
        connection = send(server, stream=True, logprobs=20)
        wait_for(server, num_generated=1500)
        connection.close()
        server.wait_idle(20.0)  # by a cancel, in a step or before the next one
        assert server.state.client.stats().num_generated_tokens == 1500
