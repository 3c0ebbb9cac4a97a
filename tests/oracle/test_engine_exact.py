"""Exactness through the whole engine: the tokens of a request are those of its solo run, whatever goes on around it.

The oracle is the request alone, on one thread, in one chunk; that this is the right answer at all is for the model tests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hasten import LLM, SamplingParams
from hasten.engine.stats import EngineStats
from hasten.llm import AsyncLLM, Output, Piece
from tests.support.native_llm import native_llm, native_loaded
from tests.support.toy_gguf import toy_spec, write_toy_gguf

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    return write_toy_gguf(path, spec=toy_spec(num_layers=3, max_position=1024))


def _prompt(seed: int, length: int, low: int = 3, high: int = 250) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(low, high) for _ in range(length)]


def _together(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[Output]:
    return llm.generate([list(prompt) for prompt in prompts], list(params))


def _ids(output: Output) -> tuple[int, ...]:
    return tuple(output.token_ids)


def _logprob_bits(output: Output) -> list[tuple[str, ...]]:
    """Every reported logprob as hexadecimal floats: equal text means equal bits."""
    return [(float(entry.logprob).hex(), *(float(top.logprob).hex() for top in entry.top)) for entry in output.logprobs]


def _many(count: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """`count` requests that differ in everything: length, sampling, seed, penalties."""
    prompts = [_prompt(seed, 5 + 23 * seed % 190) for seed in range(count)]
    kinds = [
        SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=3),
        SamplingParams(max_tokens=33, temperature=0.9, seed=5, ignore_eos=True, logprobs=1),
        SamplingParams(max_tokens=11, temperature=1.3, top_k=20, top_p=0.9, seed=6, ignore_eos=True, logprobs=2),
        SamplingParams(max_tokens=27, temperature=0.7, min_p=0.05, seed=7, repetition_penalty=1.2, ignore_eos=True, logprobs=0),
    ]
    return prompts, [kinds[i % len(kinds)] for i in range(count)]


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_sixteen_mixed_requests_give_their_solo_answers(toy_path: Path, kv: str):
    prompts, params = _many(17)
    with native_llm(toy_path, num_blocks=256, max_model_len=512, threads=1, kv=kv) as llm:
        solo = [llm.generate(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    for threads, chunk in ((1, 7), (2, 64), (8, 1)):
        with native_llm(toy_path, num_blocks=256, max_model_len=512, threads=threads, chunk=chunk, kv=kv) as llm:
            batch = _together(llm, prompts, params)
        assert [_ids(output) for output in batch] == [_ids(output) for output in solo], (threads, chunk)
        assert [_logprob_bits(output) for output in batch] == [_logprob_bits(output) for output in solo], (threads, chunk)
    assert len({_ids(output)[:8] for output in solo}) > 12, "the requests hardly differ: the test could not see a mix-up"


def test_streaming_gives_the_same_text_and_ids(toy_path: Path):
    params = replace(GREEDY, max_tokens=60)
    with native_llm(toy_path, num_blocks=64, max_model_len=512, threads=2) as llm:
        whole = llm.generate(_prompt(1, 40), params)
        pieces = list(llm.stream(_prompt(1, 40), params))
    assert "".join(piece.text for piece in pieces) == whole.text
    last = pieces[-1].output
    assert last is not None
    assert _ids(last) == _ids(whole)


def _run_chunks(path: Path, length: int, chunks: Sequence[int], runs: int, max_tokens: int, max_model_len: int) -> None:
    prompt, params = _prompt(9, length, high=300), replace(GREEDY, max_tokens=max_tokens)
    answers = set()
    for chunk in chunks:
        # the budget of a step bounds a chunk as well
        options = {"chunk": chunk, "max_num_batched_tokens": max(chunk, 16)}
        with native_llm(path, num_blocks=max_model_len // 32, max_model_len=max_model_len, **options) as llm:
            outputs = [llm.generate(prompt, params) for _ in range(runs)]
        prefill = outputs[0].ledger.parts[-2] if outputs[0].ledger else None
        assert prefill is not None
        assert prefill.detail["chunks"] == -(-length // chunk)
        answers |= {_ids(output) for output in outputs}
    assert len(answers) == 1


def test_fr_014_chunk_size_does_not_change_the_answer(smollm2_path: Path):
    _run_chunks(smollm2_path, length=150, chunks=(16, 64, 512), runs=1, max_tokens=12, max_model_len=512)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_fr_014_three_thousand_tokens_three_runs_each(smollm2_path: Path):
    _run_chunks(smollm2_path, length=3000, chunks=(16, 64, 512, 4096), runs=3, max_tokens=64, max_model_len=4096)


async def _streams(
    path: Path, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], num_blocks: int, max_model_len: int
) -> tuple[list[list[Piece]], EngineStats]:
    """The pieces of each answer, all streamed at once."""
    loaded = native_loaded(path, num_blocks=num_blocks, max_model_len=max_model_len, chunk=64)
    async with AsyncLLM.on(loaded) as llm:

        async def pieces(prompt: Sequence[int], each: SamplingParams) -> list[Piece]:
            return [piece async for piece in llm.stream(prompt, each)]

        streams = await asyncio.gather(*map(pieces, prompts, params))
        return streams, loaded.engine.snapshot()


def _preempt(path: Path, num_prompt: int, num_output: int) -> None:
    prompts = [_prompt(seed, num_prompt) for seed in range(4)]
    base = replace(GREEDY, max_tokens=num_output)
    params = [
        base,
        replace(base, temperature=0.8, seed=42),
        replace(base, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.3),
        base,
    ]
    per_request = -(-(num_prompt + num_output) // 32)
    num_blocks, max_model_len = per_request * 3 // 2, per_request * 32
    with native_llm(path, num_blocks=4 * per_request, max_model_len=max_model_len, chunk=64, threads=1) as llm:
        solo = [llm.generate(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    with native_llm(path, num_blocks=num_blocks, max_model_len=max_model_len, chunk=64) as llm:
        batch = _together(llm, prompts, params)
        snapshot = llm.loaded.engine.snapshot()
    assert snapshot.num_preemptions > 0
    assert snapshot.num_free_blocks == num_blocks
    assert [len(output.token_ids) for output in batch] == [num_output] * 4
    assert [_ids(output) for output in batch] == [_ids(output) for output in solo]
    assert [output.text for output in batch] == [output.text for output in solo]

    # streamed, each token with its logprob: no text and no token is lost or comes twice
    params = [replace(each, logprobs=0) for each in params]
    streams, snapshot = asyncio.run(_streams(path, prompts, params, num_blocks, max_model_len))
    assert snapshot.num_preemptions > 0
    for pieces, output in zip(streams, solo, strict=True):
        assert "".join(piece.text for piece in pieces) == output.text
        assert tuple(entry.token_id for piece in pieces for entry in piece.logprobs) == _ids(output)
        assert [piece.output is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert len(pieces) > num_output / 4, "the answer did not come in pieces"


def test_fr_015_preempted_requests_give_their_solo_answers(toy_path: Path):
    _preempt(toy_path, num_prompt=200, num_output=300)


@pytest.mark.full
def test_fr_015_on_the_real_model(smollm2_path: Path):
    _preempt(smollm2_path, num_prompt=200, num_output=300)


def test_fr_045_a_seed_reproduces_beside_a_request_without_one(toy_path: Path):
    seeded = SamplingParams(max_tokens=32, temperature=0.8, seed=42, ignore_eos=True)
    free = SamplingParams(max_tokens=32, temperature=0.8, ignore_eos=True)
    a, b = _prompt(1, 12), _prompt(2, 12)
    with native_llm(toy_path, num_blocks=64, max_model_len=512, threads=2) as llm:
        alone = _ids(llm.generate(a, seeded))
        others = set()
        for _ in range(10):
            first, other = _together(llm, [a, b], [seeded, free])
            assert _ids(first) == alone
            other_first, second = _together(llm, [b, a], [free, seeded])
            assert _ids(second) == alone
            others |= {_ids(other), _ids(other_first)}
        assert len(others) > 15, "requests without a seed repeat each other"
        greedy = _ids(llm.generate(a, replace(seeded, temperature=0.0, seed=None)))
        assert _ids(llm.generate(a, replace(seeded, temperature=0.0))) == greedy
    assert greedy != alone
