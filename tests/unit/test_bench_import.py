"""Traces of other tools: what their own loaders make of a row is what is sent here, or the row is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hasten.bench.client import ClientOptions, request_body
from hasten.bench.convert import convert
from hasten.bench.trace import TraceRequest, read_trace, write_trace
from hasten.cli.app import run
from hasten.errors import BadFile

_USER = {"role": "user", "content": "Hi"}
# a row in the shape of Alibaba's Bailian traces: seconds, and 16 tokens a block
_BAILIAN = {
    "chat_id": 159,
    "parent_chat_id": -1,
    "timestamp": 61.114,
    "input_length": 16,
    "output_length": 132,
    "type": "text",
    "turn": 1,
    "hash_ids": [1089],
}


def _convert(path: Path, *rows: Any, kind: str = "auto", notes: list[str] | None = None) -> list[TraceRequest]:
    (path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return convert(path / "in.jsonl", kind, notes=notes)


def test_ids_are_blocks_of_512_tokens_as_in_the_published_traces(tmp_path: Path) -> None:
    """Lengths and numbers of ids of rows of Mooncake's own traces."""
    for length, num_ids in [(6758, 14), (8160, 16), (2038, 4), (915, 2), (28, 1)]:
        (made,) = _convert(tmp_path, {"timestamp": 0, "input_length": length, "hash_ids": list(range(num_ids))})
        assert made.num_prompt_tokens == length
        assert made.messages is not None
        assert len(made.messages[0]["content"].split()) == length
        with pytest.raises(BadFile, match="not blocks of 512"):
            _convert(tmp_path, {"timestamp": 0, "input_length": length, "hash_ids": list(range(num_ids + 1))})


@pytest.mark.parametrize("kind", ["auto", "mooncake", "aiperf"])
def test_blocks_are_read_and_checked_whatever_the_format_is_called(tmp_path: Path, kind: str) -> None:
    rows = [{"input_length": 520, "hash_ids": [1, number]} for number in (2, 3)]
    one, two = (request.messages for request in _convert(tmp_path, *rows, kind=kind))
    assert one is not None
    assert two is not None
    assert one[0]["content"].split()[:512] == two[0]["content"].split()[:512]
    assert one != two
    with pytest.raises(BadFile, match=r"line 1.*Bailian.*16 tokens and seconds"):
        _convert(tmp_path, _BAILIAN, kind=kind)


def test_rows_of_different_shapes_in_one_file(tmp_path: Path) -> None:
    rows = [
        {"text_input": "one"},
        {"input_length": 4, "hash_ids": [7]},
        {"messages": [_USER]},
        {"payload": {"prompt": "two", "max_tokens": 50}},
        {"texts": [{"name": "a", "contents": ["three", "four"]}, {"name": "b", "contents": ["five"]}]},
    ]
    requests = _convert(tmp_path, *rows)
    assert requests[0].messages == [{"role": "user", "content": "one"}]
    assert [request.max_tokens for request in requests] == [None, None, None, 50, None]
    assert requests[3].prompt == "two"
    assert requests[4].messages == [{"role": "user", "content": "three\nfour\nfive"}]


def test_what_is_new_and_what_is_whole(tmp_path: Path) -> None:
    """AIPerf: lengths and text_input add to the session; the rest is whole, unless a mode says otherwise."""
    rows: list[tuple[dict[str, Any], bool]] = [
        ({"input_length": 30}, True),
        ({"text_input": "x"}, True),
        ({"text_input": "x", "context_mode": "message_array_with_responses"}, False),
        ({"text": "x"}, False),
        ({"messages": [_USER]}, False),
        ({"messages": [_USER], "message_mode": "history"}, False),
        ({"messages": [_USER], "message_mode": "delta"}, True),
        ({"payload": {"messages": [_USER]}}, False),
    ]
    requests = _convert(tmp_path, *({**row, "session_id": number} for number, (row, _) in enumerate(rows)))
    assert [request.carry_answers for request in requests] == [carries for _, carries in rows]
    first, second = _convert(tmp_path, *({"session_id": "s", "input_length": length} for length in (30, 15)))
    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (30, None)  # the second has the first before it
    assert not _convert(tmp_path, {"input_length": 30})[0].carry_answers


def test_only_a_leading_system_turn_is_of_the_whole_conversation(tmp_path: Path) -> None:
    system = {"role": "system", "text": "Be brief."}
    wanted = {"role": "system", "content": "Be brief."}
    conversation = {"session_id": "s", "turns": [system, {"text": "one"}, system]}
    again = {"session_id": "s", "turns": [system, {"text": "two"}]}
    alone = {"turns": [system]}
    asked = {"turns": [{**system, "output_length": 5}, {"text": "three"}]}
    got = [request.messages for request in _convert(tmp_path, conversation, again, alone, asked)]
    one, two, three = ([{"role": "user", "content": word}] for word in ("one", "two", "three"))
    assert got == [[wanted, *one], [wanted], [wanted], two, [wanted], [wanted], three]


def test_lines_of_one_conversation_are_one_job(tmp_path: Path) -> None:
    from hasten.bench.trace import jobs_of_trace

    requests = _convert(tmp_path, *({"session_id": "s", "turns": [word]} for word in ("one", "two")))
    (job,) = jobs_of_trace(requests)
    assert job.carry_answers
    assert len({turn.id for turn in job.turns}) == 2


def test_payloads_are_sent_as_recorded_but_for_what_the_run_decides(tmp_path: Path) -> None:
    payload = {"model": "theirs", "stream": False, "messages": [_USER], "max_completion_tokens": 9, "top_p": 0.5}
    tokens = {"prompt": [1, 2, 3], "max_tokens": 4}
    notes: list[str] = []
    chat, text = _convert(tmp_path, {"payload": payload, "timestamp": 250}, {"payload": tokens, "timestamp": 500}, notes=notes)
    path, body = request_body(chat, ClientOptions(model="mine", include_usage=False))
    assert path == "/v1/chat/completions"
    sent = {"model": "mine", "stream": True, "messages": [_USER], "max_completion_tokens": 9, "top_p": 0.5}
    assert json.loads(body) == sent
    path, body = request_body(text, ClientOptions(model="mine", include_usage=False))
    assert (path, json.loads(body)) == ("/v1/completions", {"model": "mine", "stream": True, **tokens})
    assert (chat.t, text.t) == (0.25, 0.5)
    assert notes == ["payloads are sent with the run's own model, stream"]


@pytest.mark.parametrize("indent", [None, 2])
def test_inputs_json_is_read(tmp_path: Path, indent: int | None) -> None:
    sessions = [
        {"session_id": "a", "payloads": [{"messages": [_USER]}, {"messages": [_USER, _USER]}]},
        {"session_id": "b", "payloads": [{"prompt": "x"}]},
    ]
    (tmp_path / "inputs.json").write_text(json.dumps({"data": sessions}, indent=indent))
    requests = convert(tmp_path / "inputs.json", "auto")
    assert [(request.session, request.carry_answers) for request in requests] == [("a", False), ("a", False), ("b", False)]
    assert requests[1].messages == [_USER, _USER]
    sessions[1]["payloads"] = [{"input": "x"}]
    (tmp_path / "inputs.json").write_text(json.dumps({"data": sessions}, indent=indent))
    with pytest.raises(BadFile, match=r"entry 2.*neither messages nor prompt"):
        convert(tmp_path / "inputs.json", "auto")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "x", "image_uuids": ["a"]}, "'image_uuids' cannot be kept"),
        ({"turns": [{"text": "x"}, {"text": "y", "audio": "a.wav"}]}, "'audio' cannot be kept"),
        ({"turns": ["x"], "output_length": 5}, "'output_length' beside 'turns'"),
        ({"turns": ["x"], "tools": [{}]}, "'tools' beside 'turns'"),
        ({"turns": []}, "at least one text or object"),
        ({"turns": [3]}, "at least one text or object"),
        ({"messages": [_USER], "message_mode": "patch"}, "message_mode is 'patch'; known: history, delta"),
        ({"text": "x", "message_mode": "delta"}, "delta needs messages"),
        ({"text_input": "x", "context_mode": "odd"}, "context_mode is 'odd'"),
        ({"messages": [_USER], "context_mode": "deltas_without_responses"}, "not what the row's other fields say"),
        ({"messages": [{"content": "x"}]}, "object with a role"),
        ({"text": "x", "extra": {"stream": False}}, "extra has 'stream'"),
        ({"text": "x", "extra": {"n": 3}}, "n is 3"),
        ({"payload": {"prompt": ["a", "b"]}}, "neither one text nor one list"),
        ({"texts": [{"name": "a"}]}, "field 'contents' is missing"),
    ],
)
def test_what_would_be_another_request_is_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(BadFile, match=f"line 1.*{words}"):
        _convert(tmp_path, row)


def test_fields_that_are_not_read_are_said(tmp_path: Path) -> None:
    notes: list[str] = []
    _convert(tmp_path, {"text": "x", "priority": 3}, {"turns": [{"text": "y", "mood": 1}], "owner": "z"}, notes=notes)
    assert notes == ["fields that are not read: mood, owner, priority"]


def test_a_session_is_of_one_kind(tmp_path: Path) -> None:
    rows = [{"session_id": "s", "text": "whole"}, {"session_id": "s", "text_input": "new"}]
    with pytest.raises(BadFile, match="session 's'"):
        _convert(tmp_path, *rows)
    mixed = [TraceRequest(session="s", messages=[_USER], carry_answers=carry) for carry in (True, False)]
    write_trace(tmp_path / "t.jsonl", mixed)
    with pytest.raises(BadFile, match="session 's'"):
        read_trace(tmp_path / "t.jsonl")


def test_import_says_what_the_user_must_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "x", "timestamp": 5, "priority": 1}, {"payload": {"prompt": "y", "model": "m"}}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    assert run(["bench", "import", str(tmp_path / "in.jsonl"), "-o", str(out)]) == 0
    said = capsys.readouterr().err
    for words in ("1 of 2 requests have no time", "the run's own model", "not read: priority", "2 requests written to"):
        assert words in said
    assert [request.t for request in read_trace(out)] == [None, None]
    (tmp_path / "in.jsonl").write_text('{"text": "x"}\n{"text": "y"\n')
    assert run(["bench", "import", str(tmp_path / "in.jsonl"), "-o", str(out)]) == 1
    assert "line 2" in capsys.readouterr().err
