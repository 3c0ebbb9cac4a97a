"""What a client reads when the model emits given tokens: with and without `stream` the same, and the tokenizer's decode."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

import hasten.tokenizer
from tests.server.running import running_server, scripted
from tests.support.toy_tokenizer import Toy, toy

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def both_ways(words: Toy, script: Sequence[int], **fields: Any) -> tuple[dict[str, Any], list[str]]:
    """(choice and usage without stream, the deltas of the stream), having checked that they agree."""
    fields.setdefault("prompt", "Hi")
    with running_server(scripted(words, [script, script]), words) as server:
        body = server.complete(**fields).json()
        events = server.events("/v1/completions", **fields, stream_options={"include_usage": True})
    choice = body["choices"][0]
    deltas = [event["choices"][0]["text"] for event in events[:-1]]
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
    assert "".join(deltas) == choice["text"]
    assert [reason for reason in reasons if reason] == [choice["finish_reason"]]
    assert events[-1]["usage"] == body["usage"]
    return {**choice, "usage": body["usage"]}, deltas


CHARACTERS = "水火🦉"


def test_fr_002_split_characters_are_whole_in_every_delta() -> None:
    words = toy()
    script = list(CHARACTERS.encode())
    choice, deltas = both_ways(words, script, max_tokens=20)
    assert choice["text"] == CHARACTERS == words.tokenizer.decode(script)
    assert not any("\ufffd" in delta for delta in deltas)
    assert choice["finish_reason"] == "stop"


def test_fr_002_lone_continuation_byte() -> None:
    words = toy()
    data = CHARACTERS.encode()
    script = [*data[:3], 0x80, *data[3:]]
    choice, _ = both_ways(words, script, max_tokens=20)
    assert choice["text"] == words.tokenizer.decode(script) == "水\ufffd火🦉"
    assert choice["finish_reason"] == "stop"


def test_fr_002_cut_inside_the_last_character() -> None:
    words = toy()
    script = list(CHARACTERS.encode())
    choice, _ = both_ways(words, script, max_tokens=len(script) - 1)
    assert choice["text"] == words.tokenizer.decode(script[:-1])
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("pieces", [("She", " said", " '", "maybe", "'", " not", " 'm", "."), ("    ", "return", " x", "\n")])
def test_fr_003_spaces_stay(pieces: tuple[str, ...]) -> None:
    words = toy(pieces=[piece.encode() for piece in pieces])
    script = words.spell(*pieces)
    choice, _ = both_ways(words, script, prompt="def f(x):\n", max_tokens=40)
    assert choice["text"] == "".join(pieces) == words.tokenizer.decode(script)


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (("abc", "def", "ghi", "jkl"), "gh", "abcdef"),  # ends inside a token
        (("a", " b", " c", " d", " e", " f"), "c d e", "a b "),  # needs several tokens
        (("abc", "def", "ghi"), ["zz", "ef", "bcd"], "a"),  # the one that is complete first
    ],
)
def test_fr_004_stop_strings(pieces: tuple[str, ...], stop: Any, text: str) -> None:
    words = toy(pieces=[piece.encode() for piece in pieces])
    choice, _ = both_ways(words, words.spell(*pieces, *ALPHABET), stop=stop, max_tokens=20)
    assert choice["text"] == text
    assert choice["finish_reason"] == "stop"


def test_tokens_past_a_stop_string_are_not_counted() -> None:
    words = toy()
    choice, _ = both_ways(words, list(ALPHABET.encode()), stop="def", max_tokens=26, logprobs=0)
    assert choice["text"] == "abc"
    assert choice["usage"]["completion_tokens"] == 6
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]


def test_fr_005_held_back_text_for_every_way_to_split_it() -> None:
    text = "Ana! ok?\n"
    splits = []
    for cuts in itertools.product((False, True), repeat=len(text) - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut]
        splits.append([text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)])
    words = toy(pieces=sorted({piece.encode() for split in splits for piece in split}))
    scripts = [words.spell(*split) for split in splits]
    fields: dict[str, Any] = {"prompt": ["x"] * 128, "stop": ["\n", "Ana:"], "max_tokens": 12}
    with running_server(scripted(words, [*scripts, *scripts], max_model_len=64), words) as server:
        for _ in range(2):
            body = server.complete(**fields).json()
            assert [choice["text"] for choice in body["choices"]] == ["Ana! ok?"] * 128
        for _ in range(2):
            joined = [""] * 128
            for event in server.events("/v1/completions", **fields):
                for choice in event["choices"]:
                    joined[choice["index"]] += choice["text"]
            assert joined == ["Ana! ok?"] * 128


def two_ends() -> Toy:
    """Two end tokens, as generation configs list them."""
    words = toy()
    data = dataclasses.replace(words.data, eos_token_ids=(words.eos, words.turn))
    tokenizer = hasten.tokenizer.load(data, vocab_size=words.tokenizer.vocab_size)
    return dataclasses.replace(words, data=data, tokenizer=tokenizer)


def test_fr_048_either_end_token_stops() -> None:
    words = two_ends()
    for end in (words.eos, words.turn):
        choice, _ = both_ways(words, [*b"hello", end, *b"never"], max_tokens=9)
        assert (choice["text"], choice["finish_reason"]) == ("hello", "stop")


def test_fr_048_ignore_eos_runs_to_max_tokens() -> None:
    words = two_ends()
    choice, _ = both_ways(words, [*b"hello", words.turn, *b"never"], max_tokens=9, ignore_eos=True)
    assert (choice["text"], choice["finish_reason"]) == ("hellonev", "length")
    assert choice["usage"]["completion_tokens"] == 9


def test_stop_token_id_ends_the_answer_and_is_no_text() -> None:
    choice, _ = both_ways(toy(), list(ALPHABET.encode()), stop_token_ids=[ord("d")], max_tokens=20)
    assert (choice["text"], choice["finish_reason"]) == ("abc", "stop")


def test_a_stop_string_cancels_at_the_engine() -> None:
    words = toy()
    executor = scripted(words, [list(ALPHABET.encode()) * 50], hold_after=5)  # only a cancel ends the sixth step
    with running_server(executor, words) as server:
        assert server.complete(stop="cde", max_tokens=1000).json()["choices"][0]["text"] == "ab"
        server.wait_idle(20.0)
        assert server.state.client.stats().num_generated_tokens == 5
        assert executor.num_cancelled_steps == 1
