"""Server-sent events and what a chunk means, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hasten.bench.answer import AnswerReader
from hasten.bench.record import RequestRecord
from hasten.bench.sse import SseParser


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\ndata: b\r\n\r\n", [b"a\nb"]),
        (b": ping\n\n", []),
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b"event: error\nid: 7\ndata: a\n\n", [b"a"]),
        (b"data: a\n", []),
        (b"data\n\n", [b""]),
        (b"\n\n\n", []),
        (b"data: a: b\n\n", [b"a: b"]),
    ],
)
def test_events(data: bytes, events: list[bytes]) -> None:
    assert SseParser().feed(data) == events
    parser = SseParser()
    assert [event for i in range(len(data)) for event in parser.feed(data[i : i + 1])] == events


def test_an_unfinished_event_waits() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.pending
    assert parser.feed(b"\ndata: b\n\n") == [b"a", b"b"]
    assert not parser.pending


def _read(*bodies: Any, done: bool = True) -> RequestRecord:
    """Feed one event a tick; chunk i arrives at time i + 1."""
    record = RequestRecord(id="r")
    reader = AnswerReader(record, keep_text=True)
    for tick, body in enumerate(bodies, start=1):
        reader.feed(b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n", tick)
    if done:
        reader.feed(b"data: [DONE]\n\n", len(bodies) + 1)
    reader.end(len(bodies) + 2)
    record.text = "".join(reader.text)
    return record


def _delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


@pytest.mark.parametrize(
    "first",
    [
        _delta(content="x"),
        _delta(content=" "),
        _delta(reasoning_content="hm"),
        _delta(reasoning="hm"),
        _delta(refusal="no"),
        _delta(tool_calls=[{"index": 0, "function": {"name": "look", "arguments": ""}}]),
        _delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
        _delta(content=[{"type": "text", "text": "x"}]),
        {"choices": [{"index": 0, "text": "x"}]},
    ],
)
def test_text_reasoning_and_tools_are_tokens(first: dict[str, Any]) -> None:
    assert _read(first, _delta(content="y")).chunk_ns == [1, 2]


@pytest.mark.parametrize(
    "first",
    [
        _delta(role="assistant"),
        _delta(role="assistant", content=""),
        _delta(content=None),
        _delta(tool_calls=[]),
        _delta(tool_calls=[{"index": 0, "function": {"name": None, "arguments": ""}}]),
        {"choices": [{"index": 0, "text": ""}]},
        {"choices": [], "usage": None},
    ],
)
def test_empty_and_role_only_chunks_are_no_tokens(first: dict[str, Any]) -> None:
    assert _read(first, _delta(content="y")).chunk_ns == [2]


def test_usage_and_finish() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    record = _read(_delta(content="ab"), _delta(content="c"), end, {"choices": [], "usage": usage})
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (9, 4, 3)
    assert (record.finish_reason, record.finish_ns, record.error, record.text) == ("stop", 3, None, "abc")
    assert record.chunk_chars == [2, 1]


def test_an_empty_finish_reason_is_no_end() -> None:
    """As some servers send it in every text chunk."""
    chunks = [{"choices": [{"index": 0, "text": text, "finish_reason": reason}]} for text, reason in (("a", ""), ("b", "stop"))]
    record = _read(*chunks)
    assert (record.finish_ns, record.finish_reason) == (2, "stop")


def test_usage_in_every_chunk_is_kept_per_chunk() -> None:
    record = _read(*({**_delta(content="x"), "usage": {"completion_tokens": n}} for n in (2, 6, 7)))
    assert record.chunk_tokens == [2, 6, 7]


_OTHER_SHAPES = [
    json.dumps(_delta(content=5)).encode(),
    json.dumps(_delta(tool_calls=[{"function": "look"}])).encode(),
    b'{"choices": [{"text": 7}]}',
]


@pytest.mark.parametrize("garbage", [b"{not json", b"[1]", b"\xff\xfe", b'{"choices": 3}', b"", *_OTHER_SHAPES])
def test_garbage_is_an_error_and_reading_goes_on(garbage: bytes) -> None:
    record = _read(_delta(content="a"), garbage, _delta(content="b"))
    assert (record.error, record.num_garbage, record.chunk_ns) == ("garbage", 1, [1, 3])


def test_an_error_event_is_an_error() -> None:
    record = _read(_delta(content="a"), {"error": {"message": "out of blocks"}})
    assert record.error == "stream_error"
    assert "out of blocks" in (record.error_detail or "")


def test_a_body_that_just_ends_is_truncated() -> None:
    assert _read(_delta(content="a"), done=False).error == "truncated"
    ended = _read(_delta(content="a"), {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, done=False)
    assert ended.error is None
