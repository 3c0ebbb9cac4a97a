"""A bad request, and what must hold around it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.server.running import RunningServer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]
WITHIN_S = 1.0


@contextmanager
def undisturbed_stream(server: RunningServer, num_tokens: int = 60) -> Iterator[None]:
    """Another client streams meanwhile, and gets exactly what it would get alone."""
    texts: list[str] = []

    def read() -> None:
        events = server.events(TEXT, prompt="other", max_tokens=num_tokens, ignore_eos=True)
        texts.append("".join(event["choices"][0]["text"] for event in events))

    thread = threading.Thread(target=read)
    thread.start()
    yield
    thread.join(20)
    assert texts == [server.answer("other", num_tokens)]


def refused(
    server: RunningServer, path: str, body: bytes | dict[str, Any], status: int = 400, content_type: str = "application/json"
) -> dict[str, Any]:
    """The error of a bad request, having checked its form, its speed and that the server lives."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with undisturbed_stream(server):
        started = time.monotonic()
        response = server.http.post(path, content=content, headers={"content-type": content_type})
        took_s = time.monotonic() - started
        server.check_alive()
    assert response.status_code == status, response.text[:500]
    assert took_s < WITHIN_S
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error
