"""Every architecture, on both executors, against logits and greedy answers that transformers computed (golden files).

scripts/make_golden.py made the files; each holds the versions it was made with. A new architecture is a row in TOYS.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hasten.engine.reference import load_decoder
from hasten.models.decoder import DenseKvStore
from hasten.models.rope import rope_frequencies
from hasten.models.spec import ModelSpec, RopeSpec
from hasten.request import TokenLogprobs
from hasten.weights import open_checkpoint
from hasten.weights.checkpoint import Checkpoint
from tests.support.compare import assert_close, cosine
from tests.support.golden import EXECUTORS, RUNS, check_greedy, executor, golden, prompt_logprobs
from tests.support.toy_gguf import ArrayCheckpoint, toy_weights, write_toy_gguf
from tests.support.toy_models import GREEDY_TOY, TOYS, toy_prompt


def assert_logprobs_match(found: list[TokenLogprobs], logits: np.ndarray, *, atol: float) -> None:
    """The NUM_TOP best of each position have the log-probabilities that follow from golden logits [positions, vocab]."""
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    assert len(found) == len(expected)
    ids = np.array([[token_id for token_id, _ in entry.top] for entry in found])
    assert_close(
        [[logprob for _, logprob in entry.top] for entry in found], np.take_along_axis(expected, ids, axis=1), atol=atol
    )
    # and they are the best: what is left out is no better than the worst of them
    rest = expected.copy()
    np.put_along_axis(rest, ids, -np.inf, axis=1)
    assert (rest.max(axis=1) <= np.take_along_axis(expected, ids, axis=1).min(axis=1) + 2 * atol).all()


def test_golden_files_say_what_made_them_and_toy_weights_are_unchanged():
    for name in ("toys", "toy_greedy", "rope", "smollm2"):
        assert {"script", "source", "torch", "transformers", "numpy"} <= json.loads(str(golden(name)["about"])).keys()
    for name, (spec, seed) in TOYS.items():
        total = sum(float(weight.astype(np.float64).sum()) for weight in toy_weights(spec, seed).values())
        assert total == pytest.approx(float(golden("toys")[f"{name}.weight_sum"]), rel=1e-9)


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("kind", RUNS)
def test_toy_logits_match_transformers(tmp_path, kind, name):
    """An f32 file: GQA, MHA, one KV head, tied and untied, RoPE default, linear and llama3.

    With K and V as float32 both executors differ by float32 rounding in another order (logits up to 15: at most 4e-5 found).
    Rounding K and V to bf16 (2^-9 of their size) is passed on by random layers as up to 0.13 of a logit.
    """
    spec, seed = TOYS[name]
    path = write_toy_gguf(tmp_path / "toy.gguf", spec=spec, weights=toy_weights(spec, seed), weight_format="f32")
    found = prompt_logprobs(executor(kind, open_checkpoint(path)), toy_prompt(spec, seed))
    assert_logprobs_match(found, golden("toys")[f"{name}.logits"], atol=0.25 if kind == "native bf16" else 1e-4)


@pytest.mark.parametrize("name", ["grouped", "one_kv_head", "llama3"])
@pytest.mark.parametrize(("weight_format", "bound"), [("f16", 0.999), ("q8_0", 0.99)])
@pytest.mark.parametrize("kind", EXECUTORS)
def test_fr_038_gguf_and_safetensors_layout_give_the_same_logits(tmp_path, kind, weight_format, bound, name):
    """Grouped-query heads, one model with the frequency tensor; golden logits are of the Hugging Face layout."""
    spec, seed = TOYS[name]
    path = write_toy_gguf(tmp_path / "toy.gguf", spec=spec, weights=toy_weights(spec, seed), weight_format=weight_format)
    checkpoint = open_checkpoint(path)
    assert bool(checkpoint.spec.rope.freq_factors) == (name == "llama3")
    found = prompt_logprobs(executor(kind, checkpoint), toy_prompt(spec, seed))
    expected = golden("toys")[f"{name}.logits"]
    expected = expected - np.log(np.exp(expected.astype(np.float64)).sum(axis=1, keepdims=True))
    for row, entry in zip(expected, found, strict=True):
        ids = [token_id for token_id, _ in entry.top]
        assert cosine([logprob for _, logprob in entry.top], row[ids]) >= bound


@pytest.mark.parametrize("name", ["grouped", "one_kv_head", "llama3"])
@pytest.mark.parametrize(("weight_format", "bound"), [("f16", 0.999), ("q8_0", 0.99)])
def test_fr_038_whole_logit_vectors(tmp_path, weight_format, bound, name):
    """The same on all logits, which only the reference decoder shows; rows read as they are must miss the bound."""
    spec, seed = TOYS[name]
    path = write_toy_gguf(tmp_path / "toy.gguf", spec=spec, weights=toy_weights(spec, seed), weight_format=weight_format)
    prompt, expected = toy_prompt(spec, seed), golden("toys")[f"{name}.logits"]
    checkpoint = open_checkpoint(path)
    right = reference_logits(checkpoint, prompt)
    assert min(cosine(row, want) for row, want in zip(right, expected, strict=True)) >= bound
    misread = replace(checkpoint.spec, rope=replace(checkpoint.spec.rope, interleaved=False))
    wrong = reference_logits(_WithSpec(checkpoint, misread), prompt)
    assert min(cosine(row, want) for row, want in zip(wrong, expected, strict=True)) < bound


@pytest.mark.parametrize("name", TOYS)
def test_both_row_orders_give_the_same_logits(name):
    """Hugging Face order with rotated halves is GGUF order with rotated neighbours, up to the order of sums in q·k."""
    spec, seed = TOYS[name]
    checkpoint = ArrayCheckpoint.random(spec, seed=seed)
    prompt = toy_prompt(spec, seed)
    expected = golden("toys")[f"{name}.logits"]
    assert_close(reference_logits(checkpoint, prompt), expected, atol=1e-4)
    assert_close(reference_logits(checkpoint.interleaved(), prompt), expected, atol=1e-4)


ROPES = {
    "default": RopeSpec(dim=64, base=100000.0, interleaved=False),
    "linear": RopeSpec(dim=128, base=10000.0, interleaved=False, scaling="linear", factor=4.0),
    "llama3": RopeSpec(dim=128, base=500000.0, interleaved=False, scaling="llama3", factor=8.0),
}


@pytest.mark.parametrize("name", ROPES)
def test_rope_frequencies_match_transformers(name):
    expected = golden("rope")[name]
    assert_close(rope_frequencies(ROPES[name]), expected, atol=0.0, rtol=1e-6)  # theirs are float32


def check_greedy_toy(path: Path, kind: str, num_prompts: int, *, tie: float, compared: float) -> None:
    """64 tokens of each prompt, in one batch."""
    spec, seed = GREEDY_TOY
    write_toy_gguf(path, spec=spec, weights=toy_weights(spec, seed), weight_format="f32")
    prompts = [toy_prompt(spec, 100 + i, num_tokens=4 + i) for i in range(num_prompts)]
    check_greedy(executor(kind, open_checkpoint(path)), prompts, golden("toy_greedy"), tie=tie, compared=compared)


@pytest.mark.parametrize(
    ("kind", "num_prompts"), [("native f32", 20), ("reference", 3), pytest.param("reference", 20, marks=pytest.mark.full)]
)
def test_f32_toy_is_greedy_identical_to_transformers(tmp_path, kind, num_prompts):
    """No token differs: the closest two best logits of all 1,280 are 1.3e-4 apart."""
    check_greedy_toy(tmp_path / "toy.gguf", kind, num_prompts, tie=1e-4, compared=1.0)


def test_f32_toy_with_bf16_kv_follows_transformers_up_to_wider_ties(tmp_path):
    """Each of two logits moves by up to 0.13 (test_toy_logits…), mostly less and the same way: a gap below 0.15 may close."""
    check_greedy_toy(tmp_path / "toy.gguf", "native bf16", 20, tie=0.15, compared=0.7)


class _WithSpec:
    """A checkpoint read with another spec."""

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec) -> None:
        self.spec = spec
        self.tensor = checkpoint.tensor
        self.fingerprint = checkpoint.fingerprint


def reference_logits(checkpoint: Any, prompt: list[int]) -> np.ndarray:
    """[tokens, vocab] by the decoder alone."""
    decoder = load_decoder(checkpoint)
    return decoder.logits(decoder.hidden(prompt, 0, DenseKvStore()))
