"""Toy models: random weights of any Llama shape, as a GGUF file or held in memory, with a small byte-level BPE.

Files are written with the `gguf` package, so that our reader meets a writer that is not ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from hasten.models.llama import gguf_names
from hasten.models.spec import EMBED, HEAD, ModelSpec, RopeSpec, layer_tensor
from hasten.weights.checkpoint import RawTensor, TokenizerData

Arrays = dict[str, npt.NDArray[np.float32]]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
_MERGED_WORDS = ("the", " the", "ing", " and", "er", " of", "on", " to", "an", " in", "re", " a", "ou", "llo", " w", "st")
_QUANT_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
}


def toy_spec(
    *,
    num_layers: int = 2,
    hidden_size: int = 64,
    intermediate_size: int = 96,
    num_q_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    vocab_size: int = 320,
    max_position: int = 512,
    norm_eps: float = 1e-5,
    tied_head: bool = True,
    rope: RopeSpec | None = None,
) -> ModelSpec:
    """A spec in Hugging Face row order (rope.interleaved False); write_toy_gguf turns it into GGUF order."""
    return ModelSpec(
        model_type="llama",
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position=max_position,
        norm_eps=norm_eps,
        rope=rope or RopeSpec(dim=head_dim, base=10000.0, interleaved=False),
        tied_head=tied_head,
    )


def toy_weights(spec: ModelSpec, seed: int = 0) -> Arrays:
    """Random weights by our names, rows of q and k in Hugging Face order.

    Scaled so that every layer matters and logits spread over several units: a wrong head or position changes the argmax.
    """
    rng = np.random.default_rng(seed)
    weights: Arrays = {}
    for name, (_, shape) in gguf_names(spec).items():
        if len(shape) == 1:
            weights[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            std = 0.4 if name in (EMBED, HEAD) else 1.5 * shape[1] ** -0.5
            weights[name] = (rng.standard_normal(shape) * std).astype(np.float32)
    return weights


def toy_tokens(vocab_size: int = 320) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and merges of a byte-level BPE: 3 special tokens, 256 bytes, some merges, unused ones at the end."""
    letters = _byte_letters()
    tokens = [*SPECIAL_TOKENS, *letters.values()]
    merges: list[str] = []
    for word in _MERGED_WORDS:
        pieces = [letters[byte] for byte in word.encode()]
        while len(pieces) > 1:
            if (merged := pieces[0] + pieces[1]) not in tokens:
                merges.append(f"{pieces[0]} {pieces[1]}")
                tokens.append(merged)
            pieces[:2] = [merged]
    if len(tokens) > vocab_size:
        raise ValueError(f"the toy vocabulary needs at least {len(tokens)} tokens, got {vocab_size}")
    types = [3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)) + [5] * (vocab_size - len(tokens))
    tokens += [f"<|unused_{i}|>" for i in range(vocab_size - len(tokens))]
    return tokens, types, merges


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return dict(sorted(letters.items()))


def interleave_rows(weights: npt.NDArray[np.float32], num_heads: int, rope_dim: int) -> npt.NDArray[np.float32]:
    """Rows of q or k from Hugging Face order (i pairs with i + dim/2) to GGUF order (2i pairs with 2i + 1)."""
    heads = weights.reshape(num_heads, -1, weights.shape[1]).copy()
    half = rope_dim // 2
    heads[:, 0:rope_dim:2], heads[:, 1:rope_dim:2] = heads[:, :half].copy(), heads[:, half:rope_dim].copy()
    return heads.reshape(weights.shape)


def llama3_freq_factors(rope: RopeSpec) -> tuple[float, ...]:
    """The divisors that a converter writes into rope_freqs.weight for llama3 scaling."""
    factors = []
    for i in range(rope.dim // 2):
        wavelength = 2 * np.pi * rope.base ** (2 * i / rope.dim)
        low, high = rope.original_max_position / rope.low_freq_factor, rope.original_max_position / rope.high_freq_factor
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope.factor)
        else:
            smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
                rope.high_freq_factor - rope.low_freq_factor
            )
            factors.append(1 / ((1 - smooth) / rope.factor + smooth))
    return tuple(factors)


def write_toy_gguf(
    path: Path,
    *,
    spec: ModelSpec | None = None,
    weights: Mapping[str, npt.NDArray[np.float32]] | None = None,
    weight_format: str = "q4_1",
    embed_format: str | None = None,
    seed: int = 0,
    chat_template: str | None = CHATML,
    pre: str = "smollm",
    add_bos: bool = False,
    overrides: Mapping[str, Any] | None = None,
    tokens: tuple[Sequence[str], Sequence[int], Sequence[str]] | None = None,
) -> Path:
    """Write a toy Llama and return `path`.

    Args:
        weight_format: of matrices ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"); norms are f32.
        embed_format: of the embedding and an untied head; default: weight_format.
        overrides: keys to set in place of the usual ones; None leaves a key out. Values by type: str, bool, int (uint32),
            float (float32), NumPy arrays and lists of strings as arrays.
        tokens: tokens, types and merges in place of `toy_tokens`.
    """
    spec = spec or toy_spec()
    weights = toy_weights(spec, seed) if weights is None else weights
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (_keys(spec, chat_template, pre, add_bos, tokens) | dict(overrides or {})).items():
        _add_key(writer, key, value)
    rope = spec.rope
    freq_factors = llama3_freq_factors(rope) if rope.scaling == "llama3" else rope.freq_factors
    if freq_factors:
        writer.add_tensor("rope_freqs.weight", np.asarray(freq_factors, dtype=np.float32))
    for name, (file_name, shape) in gguf_names(spec).items():
        array = np.ascontiguousarray(weights[name], dtype=np.float32)
        if name.endswith((".q", ".k")) and not rope.interleaved:
            array = interleave_rows(array, spec.num_q_heads if name.endswith(".q") else spec.num_kv_heads, rope.dim)
        kind = "f32" if len(shape) == 1 else (embed_format or weight_format) if name in (EMBED, HEAD) else weight_format
        data = gguf.quants.quantize(array, _QUANT_TYPES[kind])
        writer.add_tensor(file_name, data, raw_dtype=_QUANT_TYPES[kind])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return path


def _keys(
    spec: ModelSpec,
    chat_template: str | None,
    pre: str,
    add_bos: bool,
    vocabulary: tuple[Sequence[str], Sequence[int], Sequence[str]] | None,
) -> dict[str, Any]:
    tokens, types, merges = vocabulary or toy_tokens(spec.vocab_size)
    rope = spec.rope
    return {
        "llama.block_count": spec.num_layers,
        "llama.context_length": spec.max_position,
        "llama.embedding_length": spec.hidden_size,
        "llama.feed_forward_length": spec.intermediate_size,
        "llama.attention.head_count": spec.num_q_heads,
        "llama.attention.head_count_kv": spec.num_kv_heads,
        "llama.attention.key_length": spec.head_dim,
        "llama.attention.value_length": spec.head_dim,
        "llama.attention.layer_norm_rms_epsilon": spec.norm_eps,
        "llama.rope.dimension_count": rope.dim,
        "llama.rope.freq_base": rope.base,
        "llama.rope.scaling.type": "linear" if rope.scaling == "linear" else None,
        "llama.rope.scaling.factor": rope.factor if rope.scaling == "linear" else None,
        "llama.vocab_size": spec.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": np.asarray(types, dtype=np.int32),
        "tokenizer.ggml.merges": list(merges) or None,  # the writer refuses an empty array
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": add_bos,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": chat_template,
    }


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kind = gguf.GGUFValueType
    if value is None:
        return
    if isinstance(value, str):
        writer.add_key_value(key, value, kind.STRING)
    elif isinstance(value, bool):
        writer.add_key_value(key, value, kind.BOOL)
    elif isinstance(value, int):
        writer.add_key_value(key, value, kind.UINT32)
    elif isinstance(value, float):
        writer.add_key_value(key, value, kind.FLOAT32)
    elif isinstance(value, np.ndarray):
        element = {"int32": kind.INT32, "float32": kind.FLOAT32, "uint32": kind.UINT32}[value.dtype.name]
        writer.add_key_value(key, value.tolist(), kind.ARRAY, sub_type=element)
    else:
        writer.add_key_value(key, value, kind.ARRAY, sub_type=kind.STRING)


@dataclass(frozen=True)
class ArrayCheckpoint:
    """A Checkpoint held in memory: float32 weights by our names, in the row order that spec.rope.interleaved says."""

    spec: ModelSpec
    weights: Mapping[str, npt.NDArray[np.float32]]
    path: str = "toy"
    fingerprint: str = "toy"
    generation_defaults: Mapping[str, float | int] = field(default_factory=dict)

    @classmethod
    def random(cls, spec: ModelSpec | None = None, *, seed: int = 0) -> ArrayCheckpoint:
        spec = spec or toy_spec()
        return cls(spec, toy_weights(spec, seed))

    @property
    def tokenizer(self) -> TokenizerData:
        tokens, types, merges = toy_tokens(self.spec.vocab_size)
        return TokenizerData("gpt2", "smollm", tuple(tokens), tuple(types), tuple(merges), 1, (2,), False, False, CHATML)

    def tensor(self, name: str) -> RawTensor:
        array = np.ascontiguousarray(self.weights[name], dtype=np.float32)
        rows = array if array.ndim == 2 else array[None]
        return RawTensor(name, "f32", array.shape, rows.view(np.uint8).reshape(rows.shape[0], -1))

    def interleaved(self) -> ArrayCheckpoint:
        """The same model with q and k rows in GGUF order."""
        weights = dict(self.weights)
        for i in range(self.spec.num_layers):
            for name, num_heads in (("q", self.spec.num_q_heads), ("k", self.spec.num_kv_heads)):
                key = layer_tensor(i, name)
                weights[key] = interleave_rows(weights[key], num_heads, self.spec.rope.dim)
        return replace(self, spec=replace(self.spec, rope=replace(self.spec.rope, interleaved=True)), weights=weights)

    def close(self) -> None:
        pass
