"""TextStream under random ids and cuts, against decoding everything and searching naively."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.request import TokenLogprobs
from hasten.tokenizer import TextStream
from tests.support.toy_tokenizer import toy

PIECES = [
    b"ab", b"ba", b"aab", b" a", b"b\n", "é".encode(), "€".encode(), "€".encode()[:2], "€".encode()[1:], "😀".encode()[:2],
    "😀".encode()[1:], "😀".encode()[:3], b"a\xe2", b"\x82b", b"\xed\xa0", b"\xf4\x90", b"\xe0\x80", b"\xc0\xaf",
]  # fmt: skip
TOY = toy(pieces=PIECES, num_padding=3)
TOKENIZER = TOY.tokenizer

# few letters, so that stop strings match often and nearly
letters = st.sampled_from([ord(c) for c in "ab \n"])
multi = st.sampled_from([TOY.piece_ids[piece] for piece in PIECES])
rare = st.integers(0, TOKENIZER.vocab_size - 1)
token_ids = st.lists(st.one_of(letters, multi, letters, rare), max_size=40)
stop_strings = st.lists(st.text(alphabet="ab €\n", min_size=1, max_size=4), max_size=4)
borders = st.lists(st.integers(0, 40), max_size=12)


def chunked(ids: Sequence[int], places: Sequence[int]) -> list[Sequence[int]]:
    edges = sorted({0, len(ids), *(place for place in places if place < len(ids))})
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


def settled(ids: Sequence[int], *, skip: bool) -> str:
    """Text of these tokens that no later token can change: without an unfinished character at the end."""
    special = TOKENIZER.special_token_ids if skip else ()
    data = b"".join(TOKENIZER.token_bytes(i) for i in ids if i not in special)
    for length in (3, 2, 1):
        tail = data[-length:]
        try:
            tail.decode()
        except UnicodeDecodeError as error:
            if len(tail) == length and error.start == 0 and error.end == length and error.reason == "unexpected end of data":
                data = data[:-length]
                break
    return data.decode("utf-8", "replace")


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """(end, stop) of the first to be complete, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


@settings(max_examples=150, deadline=None)
@given(token_ids, borders, st.booleans())
def test_the_joined_stream_is_the_decoded_text(ids: list[int], places: list[int], skip: bool) -> None:
    stream = TextStream(TOKENIZER, skip_special_tokens=skip)
    texts = [stream.push(chunk).text for chunk in chunked(ids, places)] + [stream.finish().text]
    assert "".join(texts) == stream.text == TOKENIZER.decode(ids, skip_special_tokens=skip)
    assert stream.token_ids == ids


@settings(max_examples=400, deadline=None)
@given(token_ids, borders, stop_strings, st.booleans())
def test_a_stop_string_cuts_where_a_naive_search_finds_it(
    ids: list[int], places: list[int], stops: list[str], skip: bool
) -> None:
    text = TOKENIZER.decode(ids, skip_special_tokens=skip)
    found = first_stop(text, stops)
    stream = TextStream(TOKENIZER, stop=stops, skip_special_tokens=skip)
    deltas = [stream.push(chunk) for chunk in chunked(ids, places)] + [stream.finish()]
    assert "".join(delta.text for delta in deltas) == stream.text
    assert sum(delta.num_tokens for delta in deltas) == stream.num_tokens
    if found is None:
        assert (stream.stopped_by, stream.text, stream.token_ids) == (None, text, ids)
        return
    end, stop = found
    num_tokens = next((k for k in range(1, len(ids) + 1) if len(settled(ids[:k], skip=skip)) >= end), len(ids))
    assert stream.stopped_by == stop
    assert stream.text == text[: end - len(stop)]
    assert stream.token_ids == ids[:num_tokens]


@settings(max_examples=100, deadline=None)
@given(token_ids, borders, st.lists(st.text(alphabet="ab�\n", min_size=1, max_size=2), max_size=3))
def test_replacement_characters_can_be_stop_strings(ids: list[int], places: list[int], stops: list[str]) -> None:
    text = TOKENIZER.decode(ids)
    found = first_stop(text, stops)
    stream = TextStream(TOKENIZER, stop=stops)
    for chunk in chunked(ids, places):
        stream.push(chunk)
    stream.finish()
    assert stream.text == (text if found is None else text[: found[0] - len(found[1])])


@settings(max_examples=100, deadline=None)
@given(token_ids, borders, stop_strings)
def test_logprobs_are_in_order_once_and_where_their_text_is(ids: list[int], places: list[int], stops: list[str]) -> None:
    stream = TextStream(TOKENIZER, stop=stops)
    deltas = [stream.push(chunk, [TokenLogprobs(i, -1.0) for i in chunk]) for chunk in chunked(ids, places)]
    deltas.append(stream.finish())
    tokens = [token for delta in deltas for token in delta.logprobs]
    assert [token.token_id for token in tokens] == ids[: len(tokens)]
    assert len(tokens) <= stream.num_tokens
    if stream.stopped_by is None:
        assert len(tokens) == len(ids)
    for k, token in enumerate(tokens):
        assert token.bytes == TOKENIZER.token_bytes(ids[k])
        assert token.text_offset == len(settled(ids[:k], skip=True))
    # the first one left out starts at the cut or later
    if len(tokens) < len(ids):
        assert len(settled(ids[: len(tokens)], skip=True)) >= len(stream.text)
    # no entry before its text is final
    num_released = 0
    for delta, tokens_so_far in zip(deltas, itertools.accumulate(len(delta.logprobs) for delta in deltas), strict=True):
        num_released += len(delta.text)
        if stream.stopped_by is None:
            assert len(settled(ids[:tokens_so_far], skip=True)) <= num_released
