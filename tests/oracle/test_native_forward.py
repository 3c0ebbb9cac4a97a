"""The native step against a dense float64 forward pass written here: no blocks, no panels, no spans, no code shared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from hasten.kv_store import BLOCK_SIZE, KvLayout
from hasten.models.spec import EMBED, FINAL_NORM, HEAD, ModelSpec, RopeSpec, layer_tensor
from hasten.request import SamplingParams, TokenLogprobs
from hasten.scheduler.plan import NewRequest, ScheduledChunk, StepPlan, table_update
from tests.support.compare import assert_close
from tests.support.native_driver import native
from tests.support.toy_checkpoint import MemoryCheckpoint, toy_checkpoint
from tests.support.toy_gguf import llama3_freq_factors, toy_spec

Doubles = npt.NDArray[np.float64]

VOCAB = 20  # as many as logprobs can be asked for: every logit is compared


def inverse_frequencies(rope: RopeSpec) -> Doubles:
    inv_freq = rope.base ** (-np.arange(0, rope.dim, 2) / rope.dim)
    if rope.scaling == "linear":
        inv_freq = inv_freq / rope.factor
    if rope.scaling == "llama3":
        inv_freq = inv_freq / np.array(llama3_freq_factors(rope))
    return inv_freq / np.array(rope.freq_factors) if rope.freq_factors else inv_freq


def rotated(x: Doubles, rope: RopeSpec) -> Doubles:
    """x: [tokens, heads, head_dim], as complex numbers times exp(i · angle)."""
    angles = np.arange(len(x))[:, None, None] * inverse_frequencies(rope)
    half = rope.dim // 2
    real, imag = (slice(0, rope.dim, 2), slice(1, rope.dim, 2)) if rope.interleaved else (slice(0, half), slice(half, rope.dim))
    turned = (x[..., real] + 1j * x[..., imag]) * np.exp(1j * angles)
    out = x.copy()
    out[..., real], out[..., imag] = turned.real, turned.imag
    return out


def normed(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def rounded_inputs(x: Doubles, weight_format: str) -> Doubles:
    """What a product with quantized weights sees of its input: steps of 1/32258 of the largest value of a K-block."""
    if weight_format in ("f32", "f16", "bf16"):
        return x
    k = x.shape[-1]
    blocks = x.reshape(len(x), -1, next((size for size in (256, 192, 128, 64) if k % size == 0), 32))
    step = np.abs(blocks).max(axis=-1, keepdims=True) / 32258
    return (np.rint(blocks / step) * step).reshape(x.shape)


@dataclass(frozen=True)
class Dense:
    """log-softmax of the logits [tokens, VOCAB], and K (after RoPE) and V of each layer before they are stored."""

    logprobs: Doubles
    keys: list[Doubles]  # [tokens, kv heads, head_dim]
    values: list[Doubles]


def dense_forward(checkpoint: MemoryCheckpoint, token_ids: list[int], stored_kv: list[tuple[Doubles, Doubles]] | None) -> Dense:
    """Attention reads `stored_kv` by layer, so that a K or V rounded the other way does not hide other differences."""
    spec = checkpoint.spec

    def times(x: Doubles, name: str) -> Doubles:
        return rounded_inputs(x, checkpoint.tensor(name).format) @ checkpoint.stored(name).T

    x = checkpoint.stored(EMBED)[token_ids]
    num_tokens, group = len(x), spec.num_q_heads // spec.num_kv_heads
    mask = np.where(np.tri(num_tokens, dtype=bool), 0.0, -np.inf)
    all_keys, all_values = [], []
    for i in range(spec.num_layers):
        name = partial(layer_tensor, i)
        hidden = normed(x, checkpoint.stored(name("attn_norm")), spec.norm_eps)
        q, k, v = (times(hidden, name(part)).reshape(num_tokens, -1, spec.head_dim) for part in ("q", "k", "v"))
        q, k = rotated(q, spec.rope), rotated(k, spec.rope)
        all_keys.append(k)
        all_values.append(v)
        k, v = (np.repeat(read, group, axis=1) for read in (stored_kv[i] if stored_kv else (k, v)))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(spec.head_dim) + mask
        probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
        x = x + times(np.einsum("hqk,khd->qhd", probs, v).reshape(num_tokens, -1), name("o"))
        hidden = normed(x, checkpoint.stored(name("ffn_norm")), spec.norm_eps)
        gate = times(hidden, name("gate"))
        x = x + times(gate / (1 + np.exp(-gate)) * times(hidden, name("up")), name("down"))
    logits = times(normed(x, checkpoint.stored(FINAL_NORM), spec.norm_eps), EMBED if spec.tied_head else HEAD)
    logits -= logits.max(axis=-1, keepdims=True)
    return Dense(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), all_keys, all_values)


def dense_rows(entries: list[TokenLogprobs]) -> Doubles:
    """All log-probabilities of each entry by token id: [entries, VOCAB]."""
    return np.array([[dict(entry.top)[token] for token in range(VOCAB)] for entry in entries])


def run_native(
    checkpoint: MemoryCheckpoint, token_ids: list[int], kv_format: str = "bf16"
) -> tuple[Doubles, list[tuple[Doubles, Doubles]]]:
    """Log-probabilities at every position, and K and V of each layer as they lie in the store."""
    spec, num_tokens = checkpoint.spec, len(token_ids)
    executor = native(checkpoint, kv_format=kv_format)
    sampling = SamplingParams(temperature=0.0, seed=0, logprobs=VOCAB, prompt_logprobs=VOCAB)
    table = [3 * i % 32 for i in range(-(-num_tokens // BLOCK_SIZE))]
    new = NewRequest(1, tuple(token_ids), sampling)
    plan = StepPlan(0, (), (new,), (table_update(1, 0, table),), (ScheduledChunk(1, 0, num_tokens),))
    (out,) = executor.submit(plan).result().chunks
    layout = KvLayout(kv_format, spec.num_layers, spec.num_kv_heads, spec.head_dim)  # type: ignore[arg-type]
    blocks = executor.kv_bytes().reshape(-1, layout.block_bytes)
    assert not np.delete(blocks, table, axis=0).any(), "a block outside the table was written"

    def read(layer: int, is_value: bool) -> Doubles:
        heads = []
        for head in range(spec.num_kv_heads):
            start = layout.offset(layer, is_value, head)
            areas = [blocks[block, start : start + layout.head_bytes] for block in table]
            heads.append(np.concatenate([unpacked(area, is_value, kv_format, spec.head_dim) for area in areas])[:num_tokens])
        return np.stack(heads, axis=1)

    kv = [(read(layer, False), read(layer, True)) for layer in range(spec.num_layers)]
    return dense_rows([*out.prompt_logprobs, *out.logprobs]), kv


def unpacked(area: npt.NDArray[np.uint8], is_value: bool, kv_format: str, head_dim: int) -> Doubles:
    """[32 tokens, head_dim] from the packed K or V of one head, as the comment in kv_store.py reads."""
    run = {"bf16": 2, "int8": 4, "f32": 1}[kv_format]  # dims of K, tokens of V side by side
    if kv_format == "f32":
        codes = area.view(np.float32).astype(np.float64)
    elif kv_format == "bf16":
        codes = (area[: 64 * head_dim].view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    else:
        codes = area[: 32 * head_dim].view(np.int8).astype(np.float64)
    if is_value:
        rows = codes.reshape(head_dim // 16, 32 // run, 16, run).transpose(1, 3, 0, 2).reshape(32, head_dim)
    else:
        rows = codes.reshape(2, head_dim // run, 16, run).transpose(0, 2, 1, 3).reshape(32, head_dim)
    if kv_format != "int8":
        return rows
    rows = rows * area[32 * head_dim : 32 * head_dim + 128].view(np.float32).astype(np.float64)[:, None]
    return rows if is_value else rows @ hadamard_matrix(head_dim)


def hadamard_matrix(head_dim: int) -> Doubles:
    """The rotation of K, its own inverse: [head_dim, head_dim]."""
    size = head_dim & -head_dim
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.kron(np.eye(head_dim // size), matrix / np.sqrt(size))


def check(checkpoint: MemoryCheckpoint, num_tokens: int, kv_format: str = "bf16") -> None:
    logprobs, kv = run_native(checkpoint, prompt(num_tokens), kv_format)
    expected = dense_forward(checkpoint, prompt(num_tokens), kv)
    is_float = checkpoint.weight_format in ("f32", "f16", "bf16") and checkpoint.embed_format in ("f32", "f16", "bf16")
    slack = KV_SLACK if is_float else KV_SLACK_INTEGER
    for layer, (keys, values) in enumerate(kv):
        for stored, exact in ((keys, expected.keys[layer]), (values, expected.values[layer])):
            # bf16: half of a step of at most 2^-7; int8: half a code, spread over the head by the rotation of K; f32: nothing
            largest = np.abs(exact).max(axis=-1, keepdims=True)
            allowed = {
                "bf16": np.abs(exact) * 2**-8,
                "int8": largest * np.sqrt(exact.shape[-1]) / 254,
                "f32": 0.0,
            }[kv_format]
            assert (np.abs(stored - exact) <= allowed * 1.01 + slack * largest).all()
    assert_close(logprobs, expected.logprobs, atol=FLOAT_TOLERANCE if is_float else INTEGER_TOLERANCE)
    assert np.sqrt(((logprobs - expected.logprobs) ** 2).mean()) <= (FLOAT_TOLERANCE if is_float else INTEGER_TOLERANCE) / 5


# float32 sums of up to 160 terms in 3 layers: measured 1e-5 at most on logits up to 20. One integer step taken the other way
# moves an input by 3e-5 of its block's largest value; a few of the 10^5 inputs of these runs do.
FLOAT_TOLERANCE = 1e-4
INTEGER_TOLERANCE = 3e-3
# the same of K and V before they are rounded, relative to the largest of a head: 2e-6 and 1.6e-4 measured
KV_SLACK = 1e-5
KV_SLACK_INTEGER = 5e-4


def prompt(num_tokens: int) -> list[int]:
    return np.random.default_rng(9).integers(0, VOCAB, num_tokens).tolist()


_LLAMA3 = RopeSpec(dim=32, base=10000.0, interleaved=True, scaling="llama3", factor=8.0, original_max_position=64)
SPECS: dict[str, ModelSpec] = {
    "grouped": toy_spec(vocab_size=VOCAB),
    "untied": toy_spec(vocab_size=VOCAB, num_kv_heads=4, tied_head=False, intermediate_size=160),
    "one_kv_head": toy_spec(vocab_size=VOCAB, num_layers=3, hidden_size=96, num_q_heads=6, num_kv_heads=1),
    "interleaved_partial": toy_spec(vocab_size=VOCAB, head_dim=32, rope=RopeSpec(dim=16, base=500.0, interleaved=True)),
    "linear": toy_spec(vocab_size=VOCAB, rope=RopeSpec(dim=16, base=10000.0, interleaved=False, scaling="linear", factor=4.0)),
    "llama3": toy_spec(vocab_size=VOCAB, head_dim=32, rope=_LLAMA3),
    "freq_factors": toy_spec(
        vocab_size=VOCAB, rope=RopeSpec(dim=16, base=1e4, interleaved=True, freq_factors=(1, 1.5, 2, 1, 3, 1, 8, 4))
    ),
    "wide_group": toy_spec(vocab_size=VOCAB, num_q_heads=64, num_kv_heads=1),  # more rows than an attention task's 48
}


@pytest.mark.parametrize("name", SPECS)
def test_float_weights_match_float64(name: str) -> None:
    check(toy_checkpoint(SPECS[name], seed=11), 300)  # two attention spans, ten blocks


@pytest.mark.parametrize("kv_format", ["bf16", "int8", "f32"])
@pytest.mark.parametrize("weight_format", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"])
def test_every_weight_and_kv_format_matches_float64(weight_format: str, kv_format: str) -> None:
    check(toy_checkpoint(toy_spec(vocab_size=VOCAB), weight_format=weight_format, seed=12), 100, kv_format)


def test_mixed_formats_in_one_file() -> None:
    check(toy_checkpoint(toy_spec(vocab_size=VOCAB), weight_format="f16", embed_format="q8_0", seed=13), 60)


def test_int8_rotation_of_a_head_that_is_no_power_of_two() -> None:
    check(toy_checkpoint(toy_spec(vocab_size=VOCAB, head_dim=48), seed=14), 300, "int8")
