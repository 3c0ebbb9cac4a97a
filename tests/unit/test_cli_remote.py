"""`hasten chat URL` against a small HTTP server that says what the test wants."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hasten.cli import app
from hasten.cli.answer import Answer
from hasten.cli.remote import RemoteServer
from hasten.errors import HastenError
from tests.support.fake_server import FakeServer

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


def standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_chat_with_a_server_times_the_first_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An early chunk with a role only is no token (as FR-058): the first text comes at 200 ms, then one each 20 ms."""
    standard_input(monkeypatch, b"hello\n")
    with FakeServer(first_ms=200.0, gap_ms=20.0, tokens=6, role_ms=10.0) as server:
        assert app.run(["chat", server.url, "--temperature", "0", "--api-key", "k"]) == 0
        body = server.log()[0]["body"]
    captured = capsys.readouterr()
    assert captured.out == " word" * 6 + "\n"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert body["temperature"] == 0
    assert "max_tokens" not in body
    numbers = [float(word) for word in captured.err.replace("·", " ").split() if word.replace(".", "").isdigit()]
    assert numbers[0] >= 190, "the chunk with the role is no token"
    assert 15 <= numbers[1] < 190, "the wait for the first token is no gap"


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ({"error_every": 1, "error_status": 503}, "the server answered 503"),
        ({"garbage_every": 1}, "an event is not a chunk"),
        ({"reset_every": 1}, "/v1: "),
    ],
)
def test_chat_with_a_failing_server(
    scenario: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_input(monkeypatch, b"hello\n")
    with FakeServer(**scenario) as server:
        assert app.run(["chat", server.url]) == 1
    assert words in capsys.readouterr().err


def test_chat_with_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer() as server:
        assert app.run(["chat", server.url, "--model", "another"]) == 2
    assert "not 'another'" in capsys.readouterr().err
    assert app.run(["chat", server.url]) == 1
    assert app.run(["chat", "http://127.0.0.1:port"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
