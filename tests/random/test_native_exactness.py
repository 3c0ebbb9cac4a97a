"""The bytes of an answer depend on model, prompt, parameters and seed alone: the same request under every circumstance."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hasten import _kernels
from hasten.models.spec import RopeSpec
from hasten.request import SamplingParams
from hasten.weights import open_checkpoint
from tests.support.native_driver import Driver, Track, generate, native
from tests.support.toy_checkpoint import MemoryCheckpoint, toy_checkpoint
from tests.support.toy_gguf import toy_spec

GREEDY = SamplingParams(temperature=0.0, seed=1, logprobs=3)
SAMPLED = SamplingParams(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, seed=77, logprobs=3)
PENALISED = SamplingParams(
    temperature=1.0, seed=5, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.3, logprobs=2
)
SAMPLING = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}


@cache
def checkpoint(weight_format: str) -> MemoryCheckpoint:
    spec = toy_spec(hidden_size=192, intermediate_size=256, num_q_heads=6, num_kv_heads=2, head_dim=32, num_layers=3,
                    vocab_size=500, tied_head=False, rope=RopeSpec(dim=32, base=10000.0, interleaved=True))  # fmt: skip
    return toy_checkpoint(spec, weight_format=weight_format, embed_format="q8_0", seed=3)


def prompt_of(seed: int, num_tokens: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(3, 500, num_tokens).tolist())


def company(num: int) -> list[Track]:
    """Mixed others: lengths around block and span borders, chunked and whole, greedy and sampled."""
    lengths = [1, 2, 31, 32, 33, 64, 100, 5, 17, 130, 63, 40, 9, 3, 77]
    kinds = list(SAMPLING.values())
    return [
        Track(100 + i, prompt_of(50 + i, lengths[i % len(lengths)]), kinds[i % 3], 5 + i, chunk=(7, 64, 30)[i % 3])
        for i in range(num)
    ]


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("kv_format", ["bf16", "int8", "f32"])
@pytest.mark.parametrize("weight_format", ["q4_1", "f16"])
def test_same_bits_alone_and_in_a_batch_of_16(weight_format: str, kv_format: str, sampling: str) -> None:
    prompt = prompt_of(1, 290)  # past the first attention span
    executor = native(checkpoint(weight_format), kv_format=kv_format)
    expected = generate(executor, prompt, SAMPLING[sampling], 12).answer
    track = Track(1, prompt, SAMPLING[sampling], 12, chunk=64)
    Driver(native(checkpoint(weight_format), kv_format=kv_format)).run([*company(8), track, *company(15)[8:]])
    assert track.answer == expected


@pytest.mark.parametrize("kv_format", ["bf16", "int8", "f32"])
@pytest.mark.parametrize("weight_format", ["q4_0", "q8_0", "bf16"])
def test_same_bits_for_every_chunk_size_and_after_preemption(weight_format: str, kv_format: str) -> None:
    """FR-014: chunked prefill must not change greedy output."""
    prompt = prompt_of(2, 300)
    executor = native(checkpoint(weight_format), kv_format=kv_format)
    expected = generate(executor, prompt, GREEDY, 10).answer
    for chunk in (1, 7, 64):
        assert generate(executor, prompt, GREEDY, 10, chunk=chunk).answer == expected, chunk
    assert generate(executor, prompt, GREEDY, 10, chunk=128, preempt_after=4).answer == expected


@pytest.mark.parametrize("kv_format", ["bf16", "int8", "f32"])
@pytest.mark.parametrize("weight_format", ["q4_1", "f32"])
def test_same_bits_for_every_isa_and_thread_count(weight_format: str, kv_format: str) -> None:
    prompt = prompt_of(3, 265)  # past the first attention span
    answers = {}
    for isa in _kernels.available_isas():
        for threads in (1,) if isa == "scalar" else (1, 2, 8):
            executor = native(checkpoint(weight_format), kv_format=kv_format, isa=isa, threads=threads)
            answers[isa, threads] = generate(executor, prompt, SAMPLED, 4, chunk=100).answer
    expected = answers["scalar", 1]
    assert [key for key, answer in answers.items() if answer != expected] == []


def test_prompt_logprobs_do_not_depend_on_chunks() -> None:
    sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=1, prompt_logprobs=2)
    executor = native(checkpoint("q4_1"))
    expected = generate(executor, prompt_of(4, 150), sampling, 1)
    assert len(expected.prompt_logprobs) == 149
    for chunk in (1, 50, 149):
        assert generate(executor, prompt_of(4, 150), sampling, 1, chunk=chunk).prompt_logprobs == expected.prompt_logprobs


@pytest.mark.parametrize("kv_format", ["bf16", "int8", "f32"])
def test_stale_nan_in_freed_blocks_does_not_leak(kv_format: str) -> None:
    executor = native(checkpoint("q4_1"), kv_format=kv_format)
    expected = generate(executor, prompt_of(5, 45), GREEDY, 25).answer
    dirty = native(checkpoint("q4_1"), kv_format=kv_format)
    dirty.kv_bytes()[:] = 0xFF  # NaN as bf16 and as float32 scale
    assert generate(dirty, prompt_of(5, 45), GREEDY, 25).answer == expected


def test_fr_045_a_seeded_request_beside_unseeded_ones() -> None:
    executor = native(checkpoint("q4_1"))
    expected = generate(executor, prompt_of(6, 20), SAMPLED, 32).token_ids
    for order in (0, 1):
        track = Track(1, prompt_of(6, 20), SAMPLED, 32)
        other = Track(2, prompt_of(7, 20), SamplingParams(seed=123456 + order), 32)
        Driver(native(checkpoint("q4_1"))).run([track, other] if order else [other, track])
        assert track.token_ids == expected
    zero = SamplingParams(temperature=0.0, seed=999)
    assert (
        generate(executor, prompt_of(6, 20), zero, 10).token_ids == generate(executor, prompt_of(6, 20), GREEDY, 10).token_ids
    )


@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
def test_smollm2_same_bits_alone_batched_chunked_and_preempted(smollm2_path: Path, kv_format: str) -> None:
    file = open_checkpoint(smollm2_path)
    prompt = prompt_of(8, 40)
    executor = native(file, kv_format=kv_format)
    expected = generate(executor, prompt, GREEDY, 5).answer
    assert generate(executor, prompt, GREEDY, 5, chunk=7, preempt_after=3).answer == expected
    track = Track(1, prompt, GREEDY, 5, chunk=33)
    Driver(native(file, kv_format=kv_format, threads=8)).run([track, *company(3)])
    assert track.answer == expected


@pytest.mark.full
@pytest.mark.parametrize("kv_format", ["bf16", "int8"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_smollm2_in_a_batch_of_16_with_every_chunk_size(smollm2_path: Path, kv_format: str, sampling: str) -> None:
    file = open_checkpoint(smollm2_path)
    prompt = prompt_of(8, 530)
    executor = native(file, kv_format=kv_format, num_blocks=192, max_model_len=1024)
    expected = generate(executor, prompt, SAMPLING[sampling], 8).answer
    for chunk in (1, 7, 64):
        assert generate(executor, prompt, SAMPLING[sampling], 8, chunk=chunk).answer == expected
    for threads in (1, 8):
        track = Track(1, prompt, SAMPLING[sampling], 8, chunk=100)
        other = native(file, kv_format=kv_format, threads=threads, num_blocks=192, max_model_len=1024)
        Driver(other).run([*company(8), track, *company(15)[8:]])
        assert track.answer == expected
