"""Ids of the demo model against a plain BPE written here: hand-made splitting, pairs merged one by one by rank."""

from __future__ import annotations

import itertools
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hasten.tokenizer
from hasten.tokenizer import Tokenizer
from hasten.tokenizer.pre_tokenizer import SPLIT_RULES, split_rule
from hasten.weights.checkpoint import TokenizerData
from hasten.weights.gguf_checkpoint import open_gguf
from tests.support.toy_tokenizer import byte_chars

# Unicode's White_Space property; str.isspace() has four control characters more
SPACES = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B))))
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
# bytes SmolLM2's vocabulary has no token for: the reference library leaves them out, and so do we
MISSING_BYTES = frozenset({0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)})


def kind(char: str) -> str:
    if char in SPACES:
        return "space"
    category = unicodedata.category(char)[0]
    return {"L": "letter", "N": "number"}.get(category, "sign")


def split_digits(text: str) -> Iterator[str]:
    """Every numeric character alone, the rest in runs."""
    start = 0
    for i, char in enumerate(text):
        if kind(char) == "number":
            yield from filter(None, (text[start:i], char))
            start = i + 1
    yield from filter(None, (text[start:],))


def split_words(text: str) -> Iterator[str]:
    """GPT-2's words: contractions; letters, numbers or signs with one space before; runs of white space, of which the
    last is left to the word that follows."""
    i = 0
    while i < len(text):
        end = next((i + len(c) for c in CONTRACTIONS if text.startswith(c, i)), None)
        if end is None:
            first = i + 1 if text[i] == " " and i + 1 < len(text) and kind(text[i + 1]) != "space" else i
            end = first
            while end < len(text) and kind(text[end]) == kind(text[first]):
                end += 1
            if kind(text[first]) == "space" and end < len(text) and end - first > 1:
                end -= 1
        yield text[i:end]
        i = end


class PlainBpe:
    """Slow and obvious. Words are merged pair by pair: always the pair of lowest rank, the leftmost of equals."""

    def __init__(self, data: TokenizerData) -> None:
        self.ids = {token: i for i, token in enumerate(data.tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(data.merges)}
        self.special = [token for token, kind in zip(data.tokens, data.token_types, strict=True) if kind == 3]

    def encode(self, text: str) -> list[int]:
        found = [(text.index(token), -len(token), token) for token in self.special if token in text]
        if found:
            at, _, token = min(found)
            return [*self.encode(text[:at]), self.ids[token], *self.encode(text[at + len(token) :])]
        return [i for run in split_digits(text) for word in split_words(run) for i in self.merge(word)]

    def merge(self, word: str) -> list[int]:
        parts = [char for char in byte_chars(word.encode()) if char in self.ids]
        while len(parts) > 1:
            rank, at = min((self.ranks.get((a, b), 1 << 30), i) for i, (a, b) in enumerate(itertools.pairwise(parts)))
            if rank == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts]


@pytest.fixture(scope="session")
def smollm2_data(smollm2_path: Path) -> TokenizerData:
    return open_gguf(smollm2_path).tokenizer


@pytest.fixture(scope="session")
def smollm2(smollm2_data: TokenizerData) -> Tokenizer:
    return hasten.tokenizer.load(smollm2_data, vocab_size=len(smollm2_data.tokens))


@pytest.fixture(scope="session")
def plain(smollm2_data: TokenizerData) -> PlainBpe:
    return PlainBpe(smollm2_data)


def without_missing(text: str) -> str:
    return bytes(b for b in text.encode() if b not in MISSING_BYTES).decode("utf-8", "replace")


SAMPLES = [
    "",
    " ",
    "  ",
    "Hello, world!",
    "the  quick\tbrown \n\n fox   ",
    "   leading and trailing   ",
    "I'm sure they're we've he'll she'd it's can't 'quoted' 'S 'LL",
    "1234567890 3.14159 1,000,000 0x1F 12a34b ²³½ Ⅷ ٣٤٥ 一二三",
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # comment\n\n\tif x:\n\t\tpass\r\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c; } // ++--==!=<=>=&&||",
    '{"key": [1, 2.5e-3, null, true], "s": "a\\"b\\u00e9"}',
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_start|> <|im_end|>x<|endoftext|><|im_star|><|im_start",
    "Zażółć gęślą jaźń; naïve café; Straße; İstanbul; ǆ ﬁ",
    "Привет, мир! Γειά σου Κόσμε! שלום עולם مرحبا بالعالم",
    "你好，世界。こんにちは世界！안녕하세요 세계 ｆｕｌｌ ｗｉｄｔｈ",
    "😀😃 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "e\u0301 a\u0308 \u1e9b\u0323 नमस्ते ไทย",
    "\x00\x01\x02\x03\x05\x07\x08\x0b\x0c\x0e\x1b\x1c\x1e\x1f\x7f\x80\x9f",
    "a\u00a0b\u2003c\u3000d\u200be\u2028f\u2029g\u0085h\ufeffi\ufffdj",
    "word" * 200,
    " " * 300 + "x" + "\n" * 50 + "\t" * 33,
    "ab" * 500 + "!?" * 100 + "9" * 40,
    "https://example.org/a/b?c=d&e=f#g mail@example.org C:\\dir\\file.txt ~/x $HOME",
]


def made_texts() -> list[str]:
    """Pieces of all kinds in random order: borders between kinds are where splitting goes wrong."""
    pieces = [
        *(
            " ",
            "  ",
            "\n",
            " \n",
            "\t",
            "a",
            "The",
            " the",
            "é",
            "ß",
            "1",
            "42",
            "½",
            "'",
            "'s",
            "'ll",
            "'LL",
            "n't",
            "!",
            "..",
        ),
        *(" -", "—", "€", "日本", "語", "한", "ж", "ש", "م", "😀", "\u200d", "\u0301", "\u00a0", "\u3000", "\x00", "_", "`"),
        *("<|im_end|>", "<|", "function", "Ġ"),
    ]
    rng = random.Random(20)
    return ["".join(rng.choices(pieces, k=rng.randint(1, 25))) for _ in range(400)]


def test_samples_have_the_ids_of_a_plain_bpe(smollm2: Tokenizer, plain: PlainBpe) -> None:
    for text in [*SAMPLES, *made_texts()]:
        ids = smollm2.encode(text)
        assert ids == plain.encode(text), repr(text)
        assert smollm2.decode(ids, skip_special_tokens=False) == text


# unassigned code points may be letters in a newer Unicode than Python's
ASSIGNED = st.text(st.characters(exclude_categories=["Cs", "Cn", "Co"]), max_size=60)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=ASSIGNED)
def test_any_text_has_the_ids_of_a_plain_bpe(smollm2: Tokenizer, plain: PlainBpe, text: str) -> None:
    ids = smollm2.encode(text)
    assert ids == plain.encode(text)
    assert smollm2.decode(ids, skip_special_tokens=False) == without_missing(text)


def test_exactly_the_missing_bytes_are_left_out(smollm2: Tokenizer, smollm2_data: TokenizerData) -> None:
    tokens = set(smollm2_data.tokens)
    assert {b for b in range(256) if byte_chars(bytes([b])) not in tokens} == MISSING_BYTES
    for char in map(chr, range(0x100)):
        kept = "" if ord(char) in MISSING_BYTES and ord(char) < 0x80 else char
        assert smollm2.decode(smollm2.encode(f"a{char}b")) == f"a{kept}b"


def test_the_demo_model_s_chat_prompt(smollm2: Tokenizer, smollm2_data: TokenizerData) -> None:
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    turn = "<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n"
    prompt = smollm2.render_chat([{"role": "user", "content": "Hi "}])
    assert prompt == system + turn
    own = smollm2.render_chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi "}])
    assert own == "<|im_start|>system\nBe brief.<|im_end|>\n" + turn
    ids = smollm2.encode(prompt)
    assert ids[0] == smollm2_data.tokens.index("<|im_start|>") == smollm2.bos_token_id
    assert ids.count(smollm2_data.tokens.index("<|im_end|>")) == 2
    assert smollm2.eos_token_ids == (2, 0)  # the key's, then <|endoftext|>, known by its text


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "I'M it's 12345  x\n\n y", ["I", "'", "M", " it", "'s", " 12345", " ", " x", "\n\n", " y"]),
        ("default", " a1!", [" a", "1", "!"]),
        ("smollm", "it's 123  x", ["it", "'s", " ", "1", "2", "3", " ", " x"]),
        ("llama-bpe", "I'M it's 12345  x\n\n y", ["I", "'M", " it", "'s", " ", "123", "45", " ", " x", "\n\n", " y"]),
        ("llama3", "(foo) ->\n\tbar", ["(foo", ")", " ->\n", "\tbar"]),
        ("qwen2", "I'M 123 x.\n\n", ["I", "'M", " ", "1", "2", "3", " x", ".\n\n"]),
        ("tekken", "camelCase HTTPServer 42/\n", ["camel", "Case", " HTTPServer", " ", "4", "2", "/\n"]),
    ],
)
def test_split_rules(pre: str, text: str, words: list[str]) -> None:
    pieces = split_rule(pre).build().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == words


def test_every_rule_keeps_every_byte_and_stays_linear() -> None:
    for pre in SPLIT_RULES:
        rule = split_rule(pre).build()
        for text in ("a b\tc\r\n\r\n1 2 é 😀'll", " " * 20_000 + "x", "\n" * 20_000, "'" * 20_000, "aA" * 10_000):
            assert "".join(piece for piece, _ in rule.pre_tokenize_str(text)) == byte_chars(text.encode()), pre
