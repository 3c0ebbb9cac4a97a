"""A GGUF file as a Checkpoint: keys → spec and tokenizer, tensor table → our tensor names, every shape checked."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hasten.errors import BadFile, HastenError, Unsupported
from hasten.models import architecture
from hasten.models.spec import ModelSpec
from hasten.quant import FORMATS
from hasten.weights.checkpoint import RawTensor, TokenizerData
from hasten.weights.gguf import GgufFile
from hasten.weights.gguf_cursor import StringArray, Value
from hasten.weights.gguf_fingerprint import fingerprint
from hasten.weights.gguf_sampling import generation_defaults

ROPE_FREQS = "rope_freqs.weight"
_SPLIT_NAME = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_MAX_ROPE_FREQS = 4096
_TOKENIZER = "tokenizer.ggml."
_CONTROL = 3  # tokenizer.ggml.token_type
# Files of these pre-tokenizers were written without tokenizer.ggml.add_bos_token for months; their models expect a BOS.
_BOS_UNLESS_SAID = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
# Many files name only one of their model's end tokens (older Llama 3 files: not the one that ends a turn).
_END_TOKENS = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "</s>"}
)
_NUM_TOKEN_TYPES = 6


class GgufMetadata:
    """Typed look-up in a file's keys; every refusal names file and key."""

    def __init__(self, path: str, values: Mapping[str, Value]) -> None:
        self._path = path
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def _value(self, key: str, default: Value | None, wanted: str) -> Value:
        value = self._values.get(key, default)
        if value is None:
            raise BadFile(f"{self._path}: key {key!r} is missing, {wanted} is needed")
        return value

    def _wrong(self, key: str, wanted: str, value: Value) -> BadFile:
        if isinstance(value, np.ndarray):
            found = f"an array of {value.size} {value.dtype}"
        else:
            found = f"an array of {len(value)} strings" if isinstance(value, StringArray) else f"{value!r:.60}"
        return BadFile(f"{self._path}: key {key!r} must be {wanted}, found {found}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default, "a whole number")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default, "a number")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(key, "a finite number", value)
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default, "a string")
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default, "a bool")
        if not isinstance(value, bool):
            raise self._wrong(key, "a bool", value)
        return value

    def strings(self, key: str, *, optional: bool = False) -> tuple[str, ...]:
        if optional and key not in self._values:
            return ()
        value = self._value(key, None, "an array of strings")
        if not isinstance(value, StringArray):
            raise self._wrong(key, "an array of strings", value)
        try:
            return value.decode()
        except BadFile as error:
            raise BadFile(f"{self._path}: {error}") from None

    def count(self, key: str) -> int:
        """Length of an array of strings, without decoding it."""
        value = self._value(key, None, "an array of strings")
        if not isinstance(value, StringArray):
            raise self._wrong(key, "an array of strings", value)
        return len(value)

    def array(self, key: str, dtype: str, length: int) -> npt.NDArray[np.generic] | None:
        """An array of `dtype` with `length` elements, or None when the key is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        wanted = f"an array of {length} {dtype}"
        if not isinstance(value, np.ndarray) or value.dtype != np.dtype(dtype) or value.size != length:
            raise self._wrong(key, wanted, value)
        return value


class GgufCheckpoint:
    """Implements weights.checkpoint.Checkpoint."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises: BadFile, Unsupported."""
        self._file = GgufFile(path)
        try:
            self._metadata = GgufMetadata(self._file.path, self._file.metadata)
            self._refuse_split()
            self._spec, self._names = self._read_spec()
            self._check_vocabulary()
            self._generation_defaults = generation_defaults(self._metadata)
        except HastenError as error:
            self._file.close()
            prefix = f"{self._file.path}: "
            message = str(error)
            raise type(error)(message if message.startswith(prefix) else prefix + message) from error.__cause__
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @functools.cached_property
    def tokenizer(self) -> TokenizerData:
        """Built at first use: decoding the vocabulary takes longer than all the rest."""
        return _read_tokenizer(self._metadata)

    @property
    def generation_defaults(self) -> Mapping[str, float | int]:
        return self._generation_defaults

    @functools.cached_property
    def fingerprint(self) -> str:
        return fingerprint(self._file)

    def tensor(self, name: str) -> RawTensor:
        info = self._file.tensors[self._names[name]]
        return RawTensor(name, info.format, info.shape, self._file.data(info.name))

    def close(self) -> None:
        self._file.close()

    def _refuse_split(self) -> None:
        num_parts = self._metadata.integer("split.count", 1) if "split.count" in self._metadata else 1
        match = _SPLIT_NAME.search(self.path)
        if num_parts > 1 or match:
            num_parts = num_parts if num_parts > 1 else int(match[1]) if match else 1
            raise Unsupported(
                f"is one of {num_parts} parts of a split model: hasten reads single files; join the parts (gguf-split --merge)"
            )

    def _read_spec(self) -> tuple[ModelSpec, dict[str, str]]:
        tensors = self._file.tensors
        model = architecture(self._metadata.text("general.architecture"))
        spec = model.spec_from_gguf(
            self._metadata,
            vocab_size=self._metadata.count(f"{_TOKENIZER}tokens"),
            tied_head="output.weight" not in tensors,
            freq_factors=self._freq_factors(),
        )
        names = {}
        for ours, (theirs, shape) in model.gguf_names(spec).items():
            if theirs not in tensors:
                raise BadFile(f"tensor {theirs!r} of shape {shape} is missing")
            if tensors[theirs].shape != shape:
                raise BadFile(f"tensor {theirs!r} has shape {tensors[theirs].shape}, the keys of the file call for {shape}")
            names[ours] = theirs
        unused = sorted(tensors.keys() - set(names.values()) - {ROPE_FREQS})
        if unused:
            # leaving out a bias or an expert would change the answers in silence
            raise Unsupported(f"tensor {unused[0]!r} ({len(unused)} in all) is not part of hasten's {spec.model_type} decoder")
        return spec, names

    def _freq_factors(self) -> tuple[float, ...]:
        info = self._file.tensors.get(ROPE_FREQS)
        if info is None:
            return ()
        if info.format != "f32" or len(info.shape) != 1:
            raise BadFile(f"tensor {ROPE_FREQS!r} is {info.format} of shape {info.shape}, a vector of f32 is needed")
        if info.shape[0] > _MAX_ROPE_FREQS:  # before any of it is read
            raise BadFile(f"tensor {ROPE_FREQS!r} has {info.shape[0]} divisors, there are never more than {_MAX_ROPE_FREQS}")
        factors = FORMATS["f32"].dequantize(self._file.data(ROPE_FREQS))[0]
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise BadFile(f"tensor {ROPE_FREQS!r} holds divisors that are not positive")
        return tuple(factors.tolist())

    def _check_vocabulary(self) -> None:
        num_tokens = self._spec.vocab_size
        self._metadata.array(f"{_TOKENIZER}scores", "float32", num_tokens)
        types = self._metadata.array(f"{_TOKENIZER}token_type", "int32", num_tokens)
        if types is not None and not np.isin(types, range(1, _NUM_TOKEN_TYPES + 1)).all():
            raise BadFile(f"key '{_TOKENIZER}token_type' holds values outside 1 to {_NUM_TOKEN_TYPES}")
        for name in ("bos", "eos", "eot", "eom"):
            _token_id(self._metadata, name, num_tokens)


def _token_id(metadata: GgufMetadata, name: str, num_tokens: int) -> int | None:
    key = f"{_TOKENIZER}{name}_token_id"
    if key not in metadata:
        return None
    token_id = metadata.integer(key)
    if token_id in (-1, 2**32 - 1):  # how writers say "none"
        return None
    if not 0 <= token_id < num_tokens:
        raise BadFile(f"key {key!r} is {token_id}, the vocabulary has {num_tokens} tokens")
    return token_id


def _end_token_ids(metadata: GgufMetadata, tokens: tuple[str, ...], token_types: list[int]) -> tuple[int, ...]:
    """Every end token: those the keys name, then control tokens known by their text."""
    named = [_token_id(metadata, name, len(tokens)) for name in ("eos", "eot", "eom")]
    known = [i for i, kind in enumerate(token_types) if kind == _CONTROL and tokens[i] in _END_TOKENS]
    return tuple(dict.fromkeys(token_id for token_id in (*named, *known) if token_id is not None))


def _read_tokenizer(metadata: GgufMetadata) -> TokenizerData:
    tokens = metadata.strings(f"{_TOKENIZER}tokens")
    types = metadata.array(f"{_TOKENIZER}token_type", "int32", len(tokens))
    token_types = [1] * len(tokens) if types is None else [int(value) for value in types.tolist()]
    pre = metadata.text(f"{_TOKENIZER}pre", "default")
    template = "tokenizer.chat_template"
    return TokenizerData(
        kind=metadata.text(f"{_TOKENIZER}model"),
        pre=pre,
        tokens=tokens,
        token_types=tuple(token_types),
        merges=metadata.strings(f"{_TOKENIZER}merges", optional=True),
        bos_token_id=_token_id(metadata, "bos", len(tokens)),
        eos_token_ids=_end_token_ids(metadata, tokens, token_types),
        add_bos=metadata.flag(f"{_TOKENIZER}add_bos_token", pre in _BOS_UNLESS_SAID),
        add_space_prefix=metadata.flag(f"{_TOKENIZER}add_space_prefix", False),
        chat_template=metadata.text(template) if template in metadata else None,
    )


def open_gguf(path: str | os.PathLike[str]) -> GgufCheckpoint:
    """Open and check a GGUF model. Raises: BadFile, Unsupported."""
    return GgufCheckpoint(path)
