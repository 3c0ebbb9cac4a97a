"""Byte-level BPE as in GPT-2, built from a GGUF vocabulary on the `tokenizers` library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.models import BPE

from hasten.errors import BadFile, InvalidRequest
from hasten.tokenizer import byte_level
from hasten.tokenizer.chat_template import ChatTemplates
from hasten.tokenizer.pre_tokenizer import split_rule
from hasten.weights.checkpoint import TokenizerData

# the values of tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class BpeTokenizer:
    """A `Tokenizer` for GGUF files of kind "gpt2".

    Special (control) tokens written in a text are recognised anywhere. BOS: `encode` puts one in front when the file asks
    for it (add_bos) and the ids do not start with it already; so a chat whose template prints BOS, and a raw completion
    whose text starts with it, both begin with exactly one. Bytes the vocabulary has no token for are left out, as in the
    reference library (SmolLM2: six control characters and U+40000 to U+BFFFF).

    Args:
        data: what the file says.
        vocab_size: rows of the model's head. Rows past the file's tokens are padding and stand for no bytes.
    Raises: BadFile if the parts contradict each other, Unsupported for an unknown pre-tokenizer.
    """

    def __init__(self, data: TokenizerData, *, vocab_size: int) -> None:
        _check(data, vocab_size)
        self._tokens = data.tokens
        self._types = data.token_types or (1,) * len(data.tokens)
        self._vocab_size = vocab_size
        self._bos_token_id = data.bos_token_id
        self._eos_token_ids = tuple(data.eos_token_ids)
        self._add_bos = data.add_bos and data.bos_token_id is not None
        named = {*data.eos_token_ids, *(() if data.bos_token_id is None else (data.bos_token_id,))}
        # the named ones too: some converters mark end tokens as ordinary text
        self._special_token_ids = frozenset({*_positions(self._types, _UNKNOWN), *_positions(self._types, _CONTROL), *named})
        self._bytes: list[bytes | None] = [None] * vocab_size  # filled on demand: 49k conversions cost 40 ms at start
        self._backend = self._build(data)
        self._templates = ChatTemplates(data.chat_template, bos_token=self._name(data.bos_token_id), eos_token=self._eos_name())

    def _build(self, data: TokenizerData) -> BackendTokenizer:
        rule = split_rule(data.pre)
        vocab = dict(zip(data.tokens, range(len(data.tokens)), strict=True))
        if len(vocab) != len(data.tokens):
            raise BadFile(_duplicate(data.tokens))
        try:
            model = BPE(vocab, _merge_pairs(data.merges), ignore_merges=rule.ignore_merges)
        except Exception as error:  # the library raises plain Exception for a merge of unknown tokens
            raise BadFile(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error
        backend = BackendTokenizer(model)
        backend.normalizer = rule.normalizer()
        backend.pre_tokenizer = rule.build()
        user_defined = [data.tokens[i] for i in _positions(self._types, _USER_DEFINED)]
        special = [data.tokens[i] for i in sorted(self._special_token_ids)]
        backend.add_tokens([AddedToken(token, normalized=False) for token in user_defined if token])
        backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special if token])
        return backend

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._eos_token_ids

    @property
    def special_token_ids(self) -> frozenset[int]:
        return self._special_token_ids

    @property
    def has_chat_template(self) -> bool:
        return self._templates.default is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """See `Tokenizer.encode`. Raises: InvalidRequest for text that is not Unicode (a lone surrogate)."""
        try:
            # the batch call lets go of the GIL while it works, encode() does not
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest(f"text cannot be tokenized, it is not valid Unicode: {_first_surrogate(text)}") from error
        ids: list[int] = encoding.ids
        bos = self._bos_token_id
        if add_special_tokens and self._add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `Tokenizer.decode`. Raises: InvalidRequest for an id outside the vocabulary."""
        special = self._special_token_ids if skip_special_tokens else frozenset()
        return b"".join([self.token_bytes(i) for i in token_ids if i not in special]).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`; empty for padding and unused rows."""
        if not 0 <= token_id < self._vocab_size:
            raise InvalidRequest(f"token id {token_id} is outside the vocabulary of {self._vocab_size} tokens")
        data = self._bytes[token_id]
        if data is None:
            data = self._bytes[token_id] = self._convert(token_id)  # threads may do it twice, with the same result
        return data

    def _convert(self, token_id: int) -> bytes:
        if token_id >= len(self._tokens):
            return b""
        token, kind = self._tokens[token_id], self._types[token_id]
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            return token.encode("utf-8", "replace")  # added tokens are written as they are
        if kind == _UNUSED:
            return b""
        if kind == _BYTE and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return byte_level.to_bytes(token)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        template: str | None = None,
    ) -> str:
        """See `Tokenizer.render_chat`."""
        return self._templates.render(messages, add_generation_prompt=add_generation_prompt, template=template)

    def _name(self, token_id: int | None) -> str:
        return "" if token_id is None else self._tokens[token_id]

    def _eos_name(self) -> str:
        return self._name(self._eos_token_ids[0] if self._eos_token_ids else None)


def _check(data: TokenizerData, vocab_size: int) -> None:
    num_tokens = len(data.tokens)
    if not num_tokens:
        raise BadFile("tokenizer.ggml.tokens is empty")
    if num_tokens > vocab_size:
        raise BadFile(f"the file names {num_tokens} tokens, the model has rows for {vocab_size}")
    if data.token_types and len(data.token_types) != num_tokens:
        raise BadFile(f"tokenizer.ggml.token_type has {len(data.token_types)} entries for {num_tokens} tokens")
    named = [("bos_token_id", data.bos_token_id), *(("eos_token_id", i) for i in data.eos_token_ids)]
    for name, token_id in named:
        if token_id is not None and not 0 <= token_id < num_tokens:
            raise BadFile(f"tokenizer.ggml.{name} is {token_id}, the file names {num_tokens} tokens")


def _positions(types: Sequence[int], kind: int) -> list[int]:
    """Where `kind` stands in `types`, by a search in C: 49k entries, of which some twenty are wanted."""
    positions: list[int] = []
    for _ in range(types.count(kind)):
        positions.append(types.index(kind, positions[-1] + 1 if positions else 0))
    return positions


def _merge_pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    """["a b", …] as pairs; one split of the whole is twice as fast as one per merge."""
    if not merges:
        return []
    flat = " ".join(merges).split(" ")
    if len(flat) != 2 * len(merges):
        i = next(i for i, merge in enumerate(merges) if merge.count(" ") != 1)
        raise BadFile(f"tokenizer.ggml.merges[{i}] is {merges[i][:80]!r}, it must be two tokens with one space between")
    return list(zip(flat[0::2], flat[1::2], strict=True))


def _duplicate(tokens: Sequence[str]) -> str:
    first: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token in first:
            return f"tokenizer.ggml.tokens has {token[:80]!r} twice, as {first[token]} and {i}"
        first[token] = i
    return "tokenizer.ggml.tokens has a token twice"


def _first_surrogate(text: str) -> str:
    for i, char in enumerate(text):
        if 0xD800 <= ord(char) <= 0xDFFF:
            return f"character {i} is the lone surrogate U+{ord(char):04X}"
    return "it is not a string"
