"""Loading, BOS, special tokens, bytes of ids, threads, and files that contradict themselves."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import random
import threading
import time
from typing import Any

import pytest
from tokenizers import decoders

import hasten.tokenizer
from hasten.errors import BadFile, InvalidRequest, Unsupported
from hasten.tokenizer import Tokenizer
from hasten.weights.checkpoint import TokenizerData
from tests.support.toy_tokenizer import CHAT_TEMPLATE, byte_chars, toy

HI = [{"role": "user", "content": "Hi"}]


def reload(data: TokenizerData, *, vocab_size: int | None = None, **changes: Any) -> Tokenizer:
    changed = dataclasses.replace(data, **changes)
    return hasten.tokenizer.load(changed, vocab_size=len(changed.tokens) if vocab_size is None else vocab_size)


def test_fr_008_a_chat_starts_with_one_bos_if_template_and_file_both_add_it() -> None:
    words = toy(add_bos=True)
    prompt = words.tokenizer.render_chat(HI)
    assert prompt == "<s><|turn|>user\nHi\n<|turn|>assistant\n"
    expected = [words.bos, words.turn, *b"user\nHi\n", words.turn, *b"assistant\n"]
    assert words.tokenizer.encode(prompt) == expected
    # the rendered text as a raw completion: the same ids, no second BOS
    assert words.tokenizer.encode(prompt, add_special_tokens=True) == words.tokenizer.encode(prompt, add_special_tokens=False)


def test_fr_008_raw_text_gets_a_bos_only_if_the_file_asks_for_it() -> None:
    asks, silent = toy(add_bos=True), toy(add_bos=False)
    assert asks.tokenizer.encode("ab") == [asks.bos, 97, 98]
    assert asks.tokenizer.encode("<s>ab") == [asks.bos, 97, 98]
    assert asks.tokenizer.encode("") == [asks.bos]
    assert asks.tokenizer.encode("ab", add_special_tokens=False) == [97, 98]
    assert silent.tokenizer.encode("ab") == [97, 98]
    # what a template leaves out is left out: chats are encoded without special tokens (hasten.server.prepare, hasten.llm)
    bare = toy(add_bos=True, chat_template="{{ messages[0].content }}").tokenizer
    assert bare.encode(bare.render_chat(HI), add_special_tokens=False) == list(b"Hi")
    # no BOS named: nothing to add
    assert reload(asks.data, bos_token_id=None).encode("ab") == [97, 98]


def test_special_and_user_defined_tokens_are_recognised_in_text() -> None:
    words = toy(user_defined=["  ", "<tool>"])
    double_space, tool = (words.data.tokens.index(name) for name in ("  ", "<tool>"))
    assert words.tokenizer.encode("a  b<tool></s>") == [97, double_space, 98, tool, words.eos]
    assert words.tokenizer.special_token_ids == {words.bos, words.eos, words.turn}
    # a user-defined token is text, a control token is not
    ids = [97, double_space, tool, words.eos]
    assert words.tokenizer.decode(ids) == "a  <tool>"
    assert words.tokenizer.decode(ids, skip_special_tokens=False) == "a  <tool></s>"
    assert words.tokenizer.token_bytes(words.eos) == b"</s>"


def test_rules_beyond_splitting() -> None:
    # Llama 3: a word that is a token as a whole is taken, though no merge makes it
    cat = toy(pre="llama-bpe", pieces=[b"cat"])
    assert cat.tokenizer.encode("cat") == cat.spell("cat")
    assert toy(pre="gpt-2", pieces=[b"cat"]).tokenizer.encode("cat") == list(b"cat")
    # Qwen2: composed form; the others keep the text as it is
    assert toy(pre="qwen2").tokenizer.encode("e\u0301") == list("\u00e9".encode())
    assert toy(pre="llama-bpe").tokenizer.encode("e\u0301") == list("e\u0301".encode())


def test_an_end_token_marked_as_ordinary_text_is_special_all_the_same() -> None:
    words = toy()
    tokenizer = reload(words.data, token_types=(1,) * len(words.data.tokens))
    assert tokenizer.special_token_ids == {words.bos, words.eos}
    assert tokenizer.encode("a</s>") == [97, words.eos]
    assert tokenizer.decode([97, words.eos]) == "a"


def test_every_id_has_its_bytes() -> None:
    words = toy(merges=[(b"a", b"b")], pieces=["€".encode()[:2]], num_padding=3)
    assert [words.tokenizer.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert [words.tokenizer.token_bytes(i) for i in (256, 257)] == [b"ab", "€".encode()[:2]]
    padding = range(len(words.data.tokens), words.tokenizer.vocab_size)
    assert len(padding) == 3
    assert [words.tokenizer.token_bytes(i) for i in padding] == [b""] * 3
    assert words.tokenizer.decode([97, *padding, 98]) == "ab"


def test_unused_and_byte_tokens() -> None:
    words = toy()
    tokens, types = (*words.data.tokens, "[PAD7]", "<0xE2>"), (*words.data.token_types, 5, 6)
    tokenizer = reload(words.data, tokens=tokens, token_types=types)
    assert tokenizer.token_bytes(len(tokens) - 2) == b""
    assert tokenizer.token_bytes(len(tokens) - 1) == b"\xe2"


@pytest.mark.parametrize("token", ["<0xZZ>", "<0x+f>", "<0x1>", "<0xE22", "plain!"])
def test_a_byte_token_that_names_no_byte_is_text(token: str) -> None:
    words = toy()
    tokens, types = (*words.data.tokens, token), (*words.data.token_types, 6)
    assert reload(words.data, tokens=tokens, token_types=types).token_bytes(len(tokens) - 1) == token.encode()


@pytest.mark.parametrize("token_id", [-1, 259, 10**7])
def test_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    tokenizer = toy().tokenizer
    for call in (tokenizer.token_bytes, lambda i: tokenizer.decode([97, i])):
        with pytest.raises(InvalidRequest, match=f"token id {token_id} is outside the vocabulary of 259 tokens"):
            call(token_id)


def test_decode_replaces_invalid_bytes_as_the_library_does() -> None:
    tokenizer, library = toy().tokenizer, decoders.ByteLevel()
    rng = random.Random(8)
    two = [[a, b, 97] for a in range(0x80, 0x100) for b in range(256)]
    lead = [0x41, 0x80, 0xBF, 0xC2, 0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0x9F, 0xA0, 0x90, 0x8F]
    for ids in two + [rng.choices(lead, k=8) for _ in range(2000)]:
        assert tokenizer.decode(ids) == library.decode([byte_chars(bytes(ids))]), bytes(ids)


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff"])
def test_a_lone_surrogate_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"not valid Unicode: character \d is the lone surrogate U\+D"):
        toy().tokenizer.encode(text)


def test_an_unknown_kind_or_pre_tokenizer_names_the_known() -> None:
    data = toy().data
    with pytest.raises(Unsupported, match=r"kind 'llama' is unknown, hasten knows gpt2"):
        reload(data, kind="llama")
    with pytest.raises(Unsupported, match=r"'brandnew' is unknown.*gpt-2, llama-bpe, .*qwen2, smollm"):
        reload(data, pre="brandnew")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merges": ("a b", "ab")}, r"merges\[1\] is 'ab'"),
        ({"merges": ("a b c",)}, r"merges\[0\] is 'a b c'"),
        ({"merges": ("a xyzzy",)}, r"merges does not fit .*xyzzy"),
        ({"merges": ("a b",)}, r"merges does not fit .*ab"),
        ({"merges": ("a  b", "ab")}, r"merges does not fit|merges\["),
        ({"token_types": (1, 1)}, r"token_type has 2 entries for 259 tokens"),
        ({"bos_token_id": 259}, r"bos_token_id is 259, the file names 259 tokens"),
        ({"eos_token_ids": (257, -5)}, r"eos_token_id is -5"),
        ({"tokens": (), "token_types": ()}, r"tokens is empty"),
        ({"vocab_size": 100}, r"names 259 tokens, the model has rows for 100"),
    ],
)
def test_contradicting_parts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadFile, match=message):
        reload(toy().data, **changes)


def test_a_token_that_occurs_twice_is_refused() -> None:
    data = toy().data
    tokens = (*data.tokens[:100], data.tokens[97], *data.tokens[101:])
    with pytest.raises(BadFile, match=r"has 'a' twice, as 97 and 100"):
        reload(data, tokens=tokens)


def test_threads_get_the_same_answers() -> None:
    words = toy(merges=[(b"a", b"b"), (b"ab", b"c")])
    texts = [f"abc {i} <|turn|> é{i}" * 20 for i in range(40)]
    alone = [words.tokenizer.encode(text) for text in texts]
    fresh = reload(words.data)

    def work(i: int) -> bool:
        ids = fresh.encode(texts[i % 40])
        return ids == alone[i % 40] and fresh.decode(ids, skip_special_tokens=False) == texts[i % 40]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(400)))


def test_a_long_text_does_not_hold_the_interpreter() -> None:
    tokenizer = toy(merges=[(b"a", b"b")]).tokenizer
    text = "ab cd, 12 é\n" * 40_000
    done = threading.Event()

    def encode() -> None:
        tokenizer.encode(text)
        done.set()

    thread = threading.Thread(target=encode)
    start = last = time.perf_counter()
    thread.start()
    longest_gap = 0.0
    while not done.is_set():
        now = time.perf_counter()
        longest_gap, last = max(longest_gap, now - last), now
    elapsed = time.perf_counter() - start
    longest_gap = max(longest_gap, start + elapsed - last)
    thread.join()
    # held for the whole call the gap would be the call; a busy machine stretches both
    assert longest_gap < 0.5 * elapsed


def test_the_template_is_told_the_names_of_bos_and_eos() -> None:
    tokenizer = toy(chat_template="{{ bos_token }}|{{ eos_token }}|{{ messages | length }}").tokenizer
    assert tokenizer.render_chat(HI) == "<s>|</s>|1"
    assert toy(chat_template=CHAT_TEMPLATE).tokenizer.render_chat(HI, add_generation_prompt=False).endswith("Hi\n")
    assert tokenizer.render_chat(HI, template="own {{ messages[0].content }}") == "own Hi"
