"""A bad request, and what must hold around it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.server.running import MODEL, RunningServer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]
WITHIN_S = 1.0

T = TypeVar("T")


@contextmanager
def undisturbed_stream(server: RunningServer, num_tokens: int = 60) -> Iterator[None]:
    """Another client's answer has begun and stands still meanwhile; in the end it is exactly what it would be alone."""
    executor, gate = server.executor, threading.Event()
    fields = {"model": MODEL, "prompt": "other", "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    executor.step_s = 0.05  # three seconds in all, of which the gate shuts off most
    try:
        with server.http.stream("POST", TEXT, json=fields) as response:
            lines = response.iter_lines()
            texts = [_text(next(line for line in lines if line))]
            executor.gate = gate
            yield
            assert server.state.client.stats().num_open == 1, "it was in the middle of its answer all the time"
            executor.step_s = 0.0
            gate.set()
            texts += [_text(line) for line in lines if line and line != "data: [DONE]"]
    finally:
        executor.step_s, executor.gate = 0.0, None
        gate.set()
    assert len(texts[0]) < len("".join(texts))
    assert "".join(texts) == server.answer("other", num_tokens)


def _text(line: str) -> str:
    return str(json.loads(line.removeprefix("data: "))["choices"][0]["text"])


def promptly(action: Callable[[], T]) -> T:
    """What `action` gives, in less than WITHIN_S.

    A neighbour of this machine may hold up one try for so long; a server that is too slow is too slow in all three.
    """
    for _ in range(3):
        started = time.monotonic()
        result = action()
        if time.monotonic() - started < WITHIN_S:
            return result
    raise AssertionError(f"three times it took more than {WITHIN_S} s")


def refused(
    server: RunningServer, path: str, body: bytes | dict[str, Any], status: int = 400, content_type: str = "application/json"
) -> dict[str, Any]:
    """The error of a bad request, having checked its form, its speed and that the server lives."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with undisturbed_stream(server):
        response = promptly(lambda: server.http.post(path, content=content, headers={"content-type": content_type}))
    server.check_alive()
    assert response.status_code == status, response.text[:500]
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error
