"""Text, workloads, traces and their conversion."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from hasten.bench.client import ClientOptions, request_body
from hasten.bench.connection import parse_endpoint
from hasten.bench.convert import convert
from hasten.bench.lengths import parse_lengths
from hasten.bench.options import BenchOptions
from hasten.bench.text import TextMaker
from hasten.bench.tokens import LocalCounter, WordCounter
from hasten.bench.trace import TraceRequest, jobs_of_trace, read_trace, write_trace
from hasten.bench.words import WORDS
from hasten.bench.workload import WorkloadOptions, make_jobs
from hasten.errors import BadFile, UsageError


class _HalfWords:
    """A tokenizer for which a word of more than five letters is two tokens, and a stop one of its own."""

    name = "half words"

    def count(self, text: str) -> int:
        return sum((2 if len(word.rstrip(".")) > 5 else 1) + word.endswith(".") for word in text.split())

    def count_prompt(self, text: str, *, chat: bool) -> int | None:
        return self.count(text) + 7

    def close(self) -> None:
        pass


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 64, 65, 1000])
def test_text_has_exactly_the_tokens(num_tokens: int) -> None:
    for name in ("a", "b", "c"):
        assert _HalfWords().count(TextMaker(_HalfWords(), seed=3).exact(name, num_tokens)) == num_tokens


def test_text_is_deterministic_and_depends_on_seed_and_name() -> None:
    maker = TextMaker(_HalfWords(), seed=3)
    text = maker.exact("a", 50)
    assert maker.exact("a", 50) == TextMaker(_HalfWords(), seed=3).exact("a", 50) == text
    assert len({text, maker.exact("b", 50), TextMaker(_HalfWords(), seed=4).exact("a", 50)}) == 3
    assert maker.exact("c", 60, prefix="one two three").startswith("one two three ")
    with pytest.raises(UsageError, match="fixed part"):
        maker.exact("c", 2, prefix="one two three")
    with pytest.raises(UsageError, match="fixed part of the prompt has 6"):
        maker.exact("c", 5, count=_five_more)


def test_text_with_a_real_tokenizer(tmp_path: Path) -> None:
    """A byte-level BPE made on the spot from our own words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([" ".join(WORDS)], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    maker = TextMaker(LocalCounter(tmp_path), seed=1)
    for num_tokens in (5, 128, 333):
        text = maker.exact(f"n{num_tokens}", num_tokens)
        assert len(tokenizer.encode(text).ids) == num_tokens
    with pytest.raises(BadFile, match="cannot read the tokenizer"):
        LocalCounter(tmp_path / "none.json")


def _five_more(text: str) -> int:
    return len(text.split()) + 5


def _jobs(kind: Any, num_jobs: int, *, whole: Any = None, **more: Any) -> list[Any]:
    options = WorkloadOptions(kind, parse_lengths("uniform:40:60"), parse_lengths("8"), seed=2, count=whole, **more)
    return list(itertools.islice(make_jobs(options, TextMaker(WordCounter(), seed=2)), num_jobs))


def test_plain_prompts_have_their_length_and_nothing_in_common() -> None:
    requests = [job.turns[0] for job in _jobs("plain", 20, whole=_five_more)]
    texts = [request.messages[0]["content"] for request in requests]
    assert [len(text.split()) + 5 for text in texts] == [request.num_prompt_tokens for request in requests]
    assert len({text[:40] for text in texts}) == 20
    assert all(40 <= request.num_prompt_tokens <= 60 for request in requests)
    assert _jobs("plain", 20, whole=_five_more) == _jobs("plain", 20, whole=_five_more)


def test_prefix_prompts_share_their_beginning() -> None:
    texts = [job.turns[0].messages[0]["content"].split() for job in _jobs("prefix", 30, prefix_tokens=100, num_prefixes=2)]
    assert len({tuple(words[:100]) for words in texts}) == 2
    assert len({tuple(words[100:]) for words in texts}) == 30


def test_rag_requests_draw_popular_documents_more_often() -> None:
    requests = [job.turns[0] for job in _jobs("rag", 60, num_documents=20, document_tokens=30, documents_per_request=3)]
    assert all(len(set(request.documents)) == 3 for request in requests)
    counts: dict[str, int] = {}
    for request in requests:
        for document in request.documents:
            counts[document] = counts.get(document, 0) + 1
    assert max(counts.values()) > 3 * 60 * 3 / 20
    path, body = request_body(requests[0], ClientOptions(model="m"))
    assert path == "/v1/chat/completions"
    assert requests[0].documents[0] in json.loads(body)["messages"][0]["content"]
    _, ours = request_body(requests[0], ClientOptions(model="m", documents_field=True))
    assert json.loads(ours)["hasten"] == {"documents": requests[0].documents}


def test_conversations_have_turns_that_carry_answers() -> None:
    jobs = _jobs("chat", 3, turns=parse_lengths("3"))
    assert all(len(job.turns) == 3 and job.carry_answers for job in jobs)
    assert len({turn.session for turn in jobs[0].turns}) == 1
    with pytest.raises(UsageError, match="chat API"):
        _jobs("chat", 1, api="completions")


def test_trace_round_trip_and_sessions(tmp_path: Path) -> None:
    requests = [
        TraceRequest(id="b", t=2.0, session="s", messages=[{"role": "user", "content": "x"}], params={"top_k": 1}),
        TraceRequest(id="a", t=1.0, session="s", prompt="hello"),
        TraceRequest(id="c", t=3.0, prompt_tokens=[1, 2, 3], max_tokens=4),
    ]
    write_trace(tmp_path / "t.jsonl", requests)
    read = read_trace(tmp_path / "t.jsonl")
    assert [request.id for request in read] == ["a", "b", "c"]
    assert [[turn.id for turn in job.turns] for job in jobs_of_trace(read)] == [["a", "b"], ["c"]]
    _, body = request_body(read[1], ClientOptions(model="m", params={"temperature": 0}))
    assert json.loads(body)["top_k"] == 1
    path, body = request_body(read[2], ClientOptions(model="m", include_usage=False))
    assert path == "/v1/completions"
    assert json.loads(body) == {"model": "m", "stream": True, "max_tokens": 4, "prompt": [1, 2, 3]}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "a"}', "exactly one of"),
        ('{"prompt": "x", "messages": []}', "exactly one of"),
        ('{"prompt": "x", "t": -1}', "t is -1"),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens"),
        ('{"prompt": 3}', "line 1"),
        ("nonsense", "line 1"),
        ("", "no requests"),
        ('{"prompt": "x", "t": 1}\n{"prompt": "y"}', "1 of 2 requests have t"),
    ],
)
def test_bad_traces_are_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "t.jsonl").write_text(line + "\n")
    with pytest.raises(BadFile, match=words):
        read_trace(tmp_path / "t.jsonl")


def test_mooncake_traces_share_text_where_hash_ids_are_equal(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 48]},
        {"timestamp": 30535, "input_length": 1100, "output_length": 26, "hash_ids": [46, 47, 57]},
        {"timestamp": 30600, "input_length": 20, "output_length": 1, "hash_ids": [99]},
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    requests = convert(tmp_path / "m.jsonl", "auto")
    words = [request.messages[0]["content"].split() for request in requests if request.messages]
    assert [len(each) for each in words] == [1030, 1100, 20]
    assert words[0][:1024] == words[1][:1024]
    assert words[0][1024:1030] != words[1][1024:1030]
    assert [request.t for request in requests] == [27.482, 30.535, 30.6]
    assert [request.max_tokens for request in requests] == [52, 26, 1]


def test_aiperf_single_and_multi_turn(tmp_path: Path) -> None:
    rows = [
        {"text": "What is it?", "timestamp": 500},
        {"texts": ["Hello", "there"], "timestamp": 900, "session_id": "s1", "output_length": 9},
        {"session_id": "s2", "turns": [{"text": "one", "timestamp": 1000}, {"text": "two", "timestamp": 3000}, "three"]},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    requests = convert(tmp_path / "a.jsonl", "aiperf")
    assert [request.t for request in requests] == [0.5, 0.9, 1.0, 3.0, 3.0]
    assert [request.session for request in requests] == [None, "s1", "s2", "s2", "s2"]
    assert requests[1].messages == [{"role": "user", "content": "Hello\nthere"}]
    assert [request.messages for request in requests[2:]] == [[{"role": "user", "content": w}] for w in ("one", "two", "three")]
    assert [request.carry_answers for request in requests] == [False, False, True, True, True]
    (job,) = [job for job in jobs_of_trace(requests) if len(job.turns) > 1]
    assert job.carry_answers
    write_trace(tmp_path / "t.jsonl", requests)
    assert len(read_trace(tmp_path / "t.jsonl")) == 5
    assert jobs_of_trace(read_trace(tmp_path / "t.jsonl"))[2].carry_answers
    (tmp_path / "n.jsonl").write_text('{"text_input": "x", "timestamp": 3}\n{"text": "y", "output_length": 4}\n')
    untimed = convert(tmp_path / "n.jsonl", "auto", notes=(notes := []))
    assert notes == ["1 of 2 requests have no time: 1 others lose theirs"]
    assert [(request.t, request.max_tokens) for request in untimed] == [(None, None), (None, 4)]


def test_aiperf_system_turns_delays_and_extras(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    rows = [
        {"turns": [{"role": "system", "text": "Be brief."}, {"text": "one"}, {"text": "two", "delay": 250}], "session_id": "s"},
        {"input_length": 10, "hash_ids": [123]},
        {"text_input": "x", "tools": tools, "extra": {"top_p": 0.5}, "output_length": 7},
        {"messages": [{"role": "user", "content": "new"}], "session_id": "d", "message_mode": "delta"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    one, two, made, extra, delta = convert(tmp_path / "a.jsonl", "auto")
    assert one.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    assert (two.messages, two.think_s) == ([{"role": "user", "content": "two"}], 0.25)
    assert (made.max_tokens, made.num_prompt_tokens) == (None, 10)
    assert (extra.params, extra.max_tokens) == ({"tools": tools, "top_p": 0.5}, 7)
    assert (delta.carry_answers, delta.session) == (True, "d")


@pytest.mark.parametrize(
    ("text", "kind", "error", "words"),
    [
        ('{"timestamp": 1}', "mooncake", BadFile, "line 1.*input_length"),
        ('{"timestamp": 1}', "aiperf", BadFile, "input_length"),
        ('{"timestamp": 1, "input_length": 64, "hash_ids": [1, 2, 3, 4]}', "auto", BadFile, "not blocks of 512 tokens"),
        ('{"text": "x", "images": ["a.png"]}', "aiperf", BadFile, "line 1.*'images' cannot be kept"),
        ('{"payload": {"messages": []}}', "auto", BadFile, "line 1.*at least one object with a role"),
        ('{"text": "x", "delay": -1}', "aiperf", BadFile, "think_s"),
        ('{"text": "x"}', "other", UsageError, "known: auto, mooncake, aiperf"),
        ("[]", "auto", BadFile, "JSONL"),
        ("", "auto", BadFile, "no requests"),
        ('{"timestamp": "soon", "input_length": 1, "output_length": 1}', "mooncake", BadFile, "line 1"),
    ],
)
def test_bad_imports_are_named(tmp_path: Path, text: str, kind: str, error: type[Exception], words: str) -> None:
    (tmp_path / "x.jsonl").write_text(text + "\n")
    with pytest.raises(error, match=words):
        convert(tmp_path / "x.jsonl", kind)


def test_addresses() -> None:
    assert parse_endpoint("http://127.0.0.1:8000/v1").base_path == ""
    assert parse_endpoint("localhost:8000").port == 8000
    hosted = parse_endpoint("https://api.example.org/openai/v1/")
    assert (hosted.port, hosted.tls, hosted.base_path, hosted.host_header) == (443, True, "/openai", "api.example.org")
    assert parse_endpoint("http://[::1]:80/").host_header == "[::1]"
    for bad in ("ftp://x", "http://", "http://x:port"):
        with pytest.raises(UsageError):
            parse_endpoint(bad)


@pytest.mark.parametrize(
    "values",
    [
        {"concurrency": 0},
        {"rate": 0.0},
        {"duration_s": float("nan")},
        {"warmup": -1},
        {"header": ("x",)},
        {"trace": "t", "rate": 1.0},
    ],
)
def test_bad_options_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--"):
        BenchOptions(**values).check()
