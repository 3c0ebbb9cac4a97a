"""Text as a stream: split characters, stop strings in every cut, counts, log-probabilities."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import pytest

from hasten.errors import InvalidRequest
from hasten.request import TokenLogprobs
from hasten.tokenizer import TextDelta, TextStream
from tests.support.toy_tokenizer import Toy, toy

EURO, CROWD, GRIN = "€".encode(), "群".encode(), "😀".encode()


def run(stream: TextStream, chunks: Sequence[Sequence[int]]) -> list[TextDelta]:
    return [*(stream.push(chunk) for chunk in chunks), stream.finish()]


def join(deltas: Sequence[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def cuts(text: bytes) -> Iterator[list[bytes]]:
    """Every way of cutting `text` into pieces."""
    for borders in itertools.product([False, True], repeat=len(text) - 1):
        places = [0, *(i + 1 for i, cut in enumerate(borders) if cut), len(text)]
        yield [text[a:b] for a, b in itertools.pairwise(places)]


@pytest.fixture(scope="module")
def fragments() -> Toy:
    return toy(pieces=[EURO[:2], EURO[2:], CROWD[:1], CROWD[1:], GRIN[:3], GRIN[3:], GRIN[:2], b"\x80"])


def split_characters(toy: Toy) -> list[int]:
    return toy.spell(EURO[:2], EURO[2:], CROWD[:1], CROWD[1:], GRIN[:3], GRIN[3:])


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_fr_002_split_characters_never_show_a_replacement(fragments: Toy, chunk: int) -> None:
    ids = split_characters(fragments)
    stream = TextStream(fragments.tokenizer)
    deltas = run(stream, [ids[i : i + chunk] for i in range(0, len(ids), chunk)])
    assert join(deltas) == fragments.tokenizer.decode(ids) == stream.text == "€群😀"
    assert not any("\ufffd" in delta.text for delta in deltas)


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_fr_002_a_lone_continuation_byte_becomes_one_replacement(fragments: Toy, chunk: int) -> None:
    ids = split_characters(fragments)
    ids = ids[:4] + fragments.spell(b"\x80") + ids[4:]
    deltas = run(TextStream(fragments.tokenizer), [ids[i : i + chunk] for i in range(0, len(ids), chunk)])
    assert join(deltas) == fragments.tokenizer.decode(ids) == "€群\ufffd😀"


def test_fr_002_a_cut_tail_is_the_same_with_and_without_stream(fragments: Toy) -> None:
    ids = split_characters(fragments)[:-1]
    one_by_one = run(TextStream(fragments.tokenizer), [[i] for i in ids])
    assert (
        join(one_by_one) == join(run(TextStream(fragments.tokenizer), [ids])) == fragments.tokenizer.decode(ids) == "€群\ufffd"
    )
    assert [delta.text for delta in one_by_one] == ["", "€", "", "群", "", "\ufffd"]


@pytest.mark.parametrize("text", ["He said 'm not: it 's a quote , right ?", "    return x\n", " \n  \t\n"])
def test_fr_003_no_space_is_cleaned_up(text: str) -> None:
    tokenizer = toy(merges=[(b" ", b" "), (b" ", b"'"), (b" '", b"m")]).tokenizer
    ids = tokenizer.encode(text)
    for chunks in ([ids], [[i] for i in ids]):
        assert join(run(TextStream(tokenizer), chunks)) == tokenizer.decode(ids) == text


def test_fr_004_a_stop_string_that_ends_inside_a_token() -> None:
    alphabet = toy(pieces=[b"ABC", b"DEF", b"GHI"])
    ids = alphabet.spell("ABC", "DEF", "GHI")
    stream = TextStream(alphabet.tokenizer, stop=["DE"])
    assert [delta.text for delta in run(stream, [[i] for i in ids])] == ["ABC", "", "", ""]
    assert (stream.stopped_by, stream.num_tokens, stream.token_ids) == ("DE", 2, ids[:2])


def test_fr_004_a_stop_string_of_several_tokens() -> None:
    alphabet = toy(pieces=[b"A ", b"B ", b"C ", b"D "])
    ids = alphabet.spell("A ", "B ", "C ", "D ")
    for chunks in ([ids], [[i] for i in ids], [ids[:2], ids[2:]]):
        stream = TextStream(alphabet.tokenizer, stop=["B C D"])
        assert join(run(stream, chunks)) == stream.text == "A "
        assert (stream.stopped_by, stream.num_tokens) == ("B C D", 4)


def test_fr_005_a_failed_match_loses_nothing_for_every_way_of_cutting() -> None:
    text = b"Ana! ok?\nxy"
    pieces = {text[a:b] for a in range(len(text)) for b in range(a + 1, len(text) + 1)}
    ana = toy(pieces=sorted(pieces))
    for cut in cuts(text):
        ids = ana.spell(*cut)
        one_by_one, at_once = TextStream(ana.tokenizer, stop=["\n", "Ana:"]), TextStream(ana.tokenizer, stop=["\n", "Ana:"])
        assert join(run(one_by_one, [[i] for i in ids])) == join(run(at_once, [ids])) == "Ana! ok?", cut
        completing = next(i for i in range(len(cut)) if b"\n" in cut[i])
        assert one_by_one.num_tokens == at_once.num_tokens == completing + 1


@pytest.mark.parametrize(
    ("stops", "text", "released", "by"),
    [
        (["abcd", "bc"], "xabcd", "xa", "bc"),  # complete first wins, though the other starts first
        (["bc", "abc"], "xabcd", "x", "abc"),  # both end here: the longest
        (["aab"], "aaab", "a", "aab"),  # overlaps with itself
        (["abab!"], "ababab!", "ab", "abab!"),
        (["b", "b"], "ab", "a", "b"),
        (["xyz"], "xyxyz", "xy", "xyz"),
        (["€"], "1€2", "1", "€"),
        (["zzz"], "azz", "azz", None),  # held back to the end, then released
        (["abcx", "bcd"], "abcd", "a", "bcd"),  # the longer candidate fails, its tail goes on
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 3, 50])
def test_which_stop_string_wins_depends_on_the_text_only(
    stops: list[str], text: str, released: str, by: str | None, chunk: int
) -> None:
    tokenizer = toy().tokenizer
    ids = list(text.encode())
    stream = TextStream(tokenizer, stop=stops)
    assert join(run(stream, [ids[i : i + chunk] for i in range(0, len(ids), chunk)])) == released
    assert stream.stopped_by == by


def test_nothing_counts_after_the_stop_string() -> None:
    stream = TextStream(toy().tokenizer, stop=["b"])
    assert stream.push(b"abcd") == TextDelta("a", (), 2)
    assert stream.push(b"efg") == stream.finish() == stream.finish() == TextDelta()
    assert (stream.text, stream.token_ids) == ("a", [97, 98])


def test_control_tokens_count_and_are_left_out() -> None:
    words = toy()
    ids = [97, words.turn, 98, words.eos]
    stream = TextStream(words.tokenizer)
    assert join(run(stream, [ids])) == "ab"
    assert stream.num_tokens == 4
    assert join(run(TextStream(words.tokenizer, skip_special_tokens=False), [ids])) == "a<|turn|>b</s>"
    # a character whose bytes lie around a control token is put together, as decode does
    ids = [*EURO[:2], words.turn, *EURO[2:]]
    assert join(run(TextStream(words.tokenizer), [[i] for i in ids])) == words.tokenizer.decode(ids) == "€"


def test_fr_048_the_stop_token_gives_no_text_even_if_it_is_an_ordinary_one() -> None:
    stream = TextStream(toy().tokenizer, stop=["c."])
    assert stream.push(b"abc.", entries(b"abc."), ends_with_stop_token=True).num_tokens == 4
    assert [token.text for token in stream.finish().logprobs] == ["c"]
    assert (stream.text, stream.stopped_by) == ("abc", None)


def test_bad_stop_strings_and_ids_are_refused() -> None:
    tokenizer = toy().tokenizer
    with pytest.raises(InvalidRequest, match="non-empty"):
        TextStream(tokenizer, stop=["a", ""])
    with pytest.raises(InvalidRequest, match="9000 characters in all, the limit is 8192"):
        TextStream(tokenizer, stop=["a" * 9000])
    with pytest.raises(InvalidRequest, match="token id 100000 is outside the vocabulary of 259"):
        TextStream(tokenizer).push([97, 100_000])


def entries(ids: Sequence[int], *, top: int = 0) -> list[TokenLogprobs]:
    return [TokenLogprobs(i, -i / 8, tuple((i + k, -k / 2) for k in range(top))) for i in ids]


def test_logprobs_come_with_the_text_they_belong_to(fragments: Toy) -> None:
    ids = fragments.spell("a", EURO[:2], EURO[2:], "b")
    stream = TextStream(fragments.tokenizer)
    deltas = [stream.push([i], entries([i], top=2)) for i in ids]
    assert [[token.token_id for token in delta.logprobs] for delta in deltas] == [[97], [], ids[1:3], [98]]
    tokens = [token for delta in deltas for token in delta.logprobs]
    assert [token.bytes for token in tokens] == [b"a", EURO[:2], EURO[2:], b"b"]
    assert [token.text for token in tokens] == ["a", "\ufffd", "\ufffd", "b"]
    assert [token.text_offset for token in tokens] == [0, 1, 1, 2]
    assert [token.logprob for token in tokens] == [-i / 8 for i in ids]
    assert [(alt.token_id, alt.text, alt.bytes, alt.logprob) for alt in tokens[0].top] == [
        (97, "a", b"a", 0.0),
        (98, "b", b"b", -0.5),
    ]


def test_logprobs_end_where_the_text_ends() -> None:
    letters = toy(pieces=[b"bX", b"YZ"])
    ids = letters.spell("a", "bX", "YZ", "c")
    stream = TextStream(letters.tokenizer, stop=["XY"])
    deltas = [stream.push([i], entries([i])) for i in ids]
    # "bX" waits: its X may start the stop string; then its b is text, and YZ is not
    assert [[token.text for token in delta.logprobs] for delta in deltas] == [["a"], [], ["bX"], []]
    assert stream.text == "ab"
    assert stream.num_tokens == 3


def test_a_cut_tail_releases_its_logprobs_at_the_end() -> None:
    stream = TextStream(toy().tokenizer)
    assert [token.text for token in stream.push(b"a\xe2\x82", entries(b"a\xe2\x82")).logprobs] == ["a"]
    last = stream.finish()
    assert (last.text, [token.bytes for token in last.logprobs]) == ("\ufffd", [b"\xe2", b"\x82"])


def test_work_per_token_does_not_grow_with_the_answer() -> None:
    tokenizer = toy().tokenizer
    stream = TextStream(tokenizer, stop=["b" * 50 + "c"])

    def seconds(num_tokens: int) -> float:
        start = time.thread_time()
        for i in range(num_tokens):
            stream.push([98 if i % 7 else 97])
        return time.thread_time() - start

    seconds(500)
    early = min(seconds(1000) for _ in range(3))
    seconds(60_000)
    late = min(seconds(1000) for _ in range(3))
    assert late < 5 * early + 0.002  # decoding the whole text each time would make it 20 times
