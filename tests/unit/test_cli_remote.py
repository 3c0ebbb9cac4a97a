"""`hasten chat URL` against a small HTTP server that says what the test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hasten.cli.answer import Answer
from hasten.cli.remote import RemoteServer
from hasten.errors import HastenError

HELLO = [{"role": "user", "content": "Hi"}]


@contextmanager
def serving(body: Sequence[bytes | float], *, status: int = 200) -> Iterator[str]:
    """The URL of a server that lists one model and answers a chat with `body`: bytes, and seconds to wait between them."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._head(200, "application/json")
            self.wfile.write(b'{"data":[{"id":"m"}]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._head(status, "text/event-stream")
            for part in body:
                if isinstance(part, bytes):
                    self.wfile.write(part)
                    self.wfile.flush()
                else:
                    time.sleep(part)

        def _head(self, status: int, content_type: str) -> None:
            self.send_response(status)  # HTTP/1.0: the end of the connection is the end of the body
            self.send_header("content-type", content_type)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def event(text: str | None = None, *, reason: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice], **fields}, ensure_ascii=False).encode() + b"\n\n"


def usage(num_tokens: int) -> bytes:
    counts = {"prompt_tokens": 3, "completion_tokens": num_tokens}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\ndata: [DONE]\n\n"


def reply(url: str) -> tuple[list[str], Answer]:
    server = RemoteServer(url)
    try:
        pieces, answer = [], server.reply(HELLO, {})
        while True:
            try:
                pieces.append(next(answer))
            except StopIteration as stop:
                return pieces, stop.value
    finally:
        server.close()


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_characters_that_other_readers_take_for_ends_of_lines(separator: str) -> None:
    text = f"one{separator}two"
    with serving([event(text), event(reason="stop"), usage(3)]) as url:
        pieces, answer = reply(url)
    assert (pieces, answer.text, answer.finish_reason) == ([text], text, "stop")
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 3)


def test_pieces_cut_anywhere_and_lines_that_end_in_cr_lf() -> None:
    whole = (event("né") + event("e", reason="length") + usage(2)).replace(b"\n", b"\r\n")
    with serving([part for i in range(len(whole)) for part in (whole[i : i + 1], 0.0)]) as url:
        pieces, answer = reply(url)
    assert (pieces, answer.finish_reason) == (["né", "e"], "length")


def test_the_end_token_is_one_of_those_that_share_the_time() -> None:
    """Three tokens with text, an end token with none: three gaps from the first to the last of four tokens."""
    step_s = 0.2
    body = [event("a"), step_s, event("b"), step_s, event("c"), step_s, event(reason="stop"), usage(4)]
    with serving(body) as url:
        _, answer = reply(url)
    assert answer.tpot_ms is not None
    assert answer.tpot_ms > 160  # two gaps shared by three tokens would be 133 ms


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([event("one")], "cut off"),
        ([event("one"), b'data: {"choices": [{"del'], "cut off"),
        ([], "cut off"),
        ([event("one"), b'data: {"error": {"message": "out of luck"}}\n\n', b"data: [DONE]\n\n"], "out of luck"),
        ([event("one"), b'data: {"error": "plain words"}\n\n'], "plain words"),
        ([event("one"), b"data: nonsense\n\n"], "nonsense"),
        ([b"data: [1]\n\n"], r"\[1\]"),
    ],
)
def test_answers_that_go_wrong(body: list[bytes], words: str) -> None:
    with serving(body) as url, pytest.raises(HastenError, match=words):
        reply(url)


@pytest.mark.parametrize(
    ("body", "words"),
    [(b'{"error": {"message": "too long"}}', "too long"), (b"<html>", "answered 400"), (b'"x"', "answered 400")],
)
def test_refusals(body: bytes, words: str) -> None:
    with serving([body], status=400) as url, pytest.raises(HastenError, match=words):
        reply(url)
