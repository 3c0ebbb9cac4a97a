"""Imported traces as a server sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hasten.bench.convert import convert
from hasten.bench.trace import write_trace
from tests.support.fake_server import FakeServer
from tests.support.load_oracle import run


def _import(folder: Path, *rows: dict[str, Any]) -> str:
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_trace(folder / "t.jsonl", convert(folder / "in.jsonl", "auto"))
    return str(folder / "t.jsonl")


def test_lengths_of_a_mooncake_trace_are_checked(tmp_path: Path) -> None:
    """The fake server's template adds five tokens to a message: all prompts are longer than the trace says."""
    trace = _import(tmp_path, *({"timestamp": 20 * i, "input_length": 30, "hash_ids": [i]} for i in range(4)))
    with FakeServer(tokens=2, first_ms=1) as server:
        tokens = run(server.url, trace=trace).result["tokens"]
    assert (tokens["prompts_checked"], tokens["prompts_off_length"]) == (4, 4)


def test_a_conversation_of_aiperf_carries_the_answers_and_waits(tmp_path: Path) -> None:
    turns = [{"role": "system", "text": "Be brief."}, {"text": "one"}, {"text": "two", "delay": 60, "extra": {"top_p": 0.5}}]
    trace = _import(tmp_path, {"session_id": "s", "turns": turns})
    with FakeServer(tokens=2, first_ms=1) as server:
        outcome = run(server.url, trace=trace)
        bodies = [entry["body"] for entry in server.log()]
    assert [[message["role"] for message in body["messages"]] for body in bodies] == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
    ]
    assert bodies[1]["messages"][2]["content"] == " word word"
    assert [body.get("top_p") for body in bodies] == [None, 0.5]
    first, second = outcome.records
    assert second.sent_ns - first.end_ns >= 59_000_000
