"""What the engine refuses and what it cuts to fit: prompts, max_tokens, ids, seeds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hasten.errors import InvalidRequest, PromptTooLong
from hasten.request import FinishReason, SamplingParams
from tests.support.engine_run import EngineRun
from tests.support.scripted import ScriptedExecutor, made_up_answer


def test_fr_017_prompt_over_the_pool_is_refused_and_blocks_nobody() -> None:
    executor = ScriptedExecutor(num_blocks=64, block_size=32, max_model_len=8192)
    with EngineRun(executor) as run:
        started = time.monotonic()
        with pytest.raises(PromptTooLong) as error:
            run.submit([5] * 4000, 10)
        assert time.monotonic() - started < 1
        assert "4000" in str(error.value)
        assert "2048" in str(error.value)
        assert "8192" in str(error.value)
        assert (error.value.code, error.value.param) == ("context_length_exceeded", "prompt")
        assert run.tokens(run.submit([5] * 10, 10)) == made_up_answer([5] * 10, 10, 1000)


@pytest.mark.parametrize("max_tokens", [None, 5, 10_000])
def test_fr_041_prompts_around_the_limit(max_tokens: int | None) -> None:
    limit = 128
    with EngineRun(ScriptedExecutor(max_model_len=limit)) as run:
        for num_prompt, room in ((limit - 1, 1), (limit, 0), (limit - 40, 40)):
            request = run.submit([5] * num_prompt, max_tokens)
            assert len(run.tokens(request)) == (room if max_tokens is None else min(room, max_tokens))
            assert run.wait(request).finish_reason is FinishReason.LENGTH
        for num_prompt in (limit + 1, 10 * limit):
            with pytest.raises(PromptTooLong, match=rf"{num_prompt} tokens.*{limit}"):
                run.submit([5] * num_prompt, max_tokens)
        assert len(run.tokens(run.submit([5] * 10, 3))) == 3


def test_fr_042_prompts_are_never_cut() -> None:
    executor = ScriptedExecutor(max_model_len=256)
    with EngineRun(executor) as run:
        with pytest.raises(PromptTooLong):
            run.submit(range(3, 515), 10)
        run.wait(run.submit(range(3, 253), 3))
    assert [new.prompt_token_ids for plan in executor.plans for new in plan.new] == [tuple(range(3, 253))]


def test_a_lone_request_may_use_the_whole_pool() -> None:
    with EngineRun(ScriptedExecutor(num_blocks=4, block_size=4, max_model_len=4096)) as run:
        request = run.submit([5] * 6, None)
        assert run.tokens(request) == made_up_answer([5] * 6, 10, 1000)
        assert run.engine.snapshot().num_preemptions == 0


@pytest.mark.parametrize("prompt", [[], [1000], [-1], [3, 4, 2**40], [1.9, 2], ["a"], [True], [[3]]])
def test_bad_prompts_are_refused(prompt: list[int]) -> None:
    with EngineRun(ScriptedExecutor(vocab_size=1000)) as run:
        with pytest.raises(InvalidRequest) as error:
            run.submit(prompt, 3)
        assert error.value.param == "prompt"
        assert len(run.tokens(run.submit([3], 3))) == 3


@pytest.mark.parametrize("fields", [{"stop_token_ids": (3, 1000)}, {"logit_bias": ((3, 1.0), (10**7, 5.0))}])
def test_ids_outside_the_vocabulary_are_refused(fields: dict[str, Any]) -> None:
    with EngineRun(ScriptedExecutor(vocab_size=1000)) as run:
        with pytest.raises(InvalidRequest, match=r"outside the vocabulary \(0 … 999\)") as error:
            run.submit([3], SamplingParams(**fields))
        assert error.value.param in fields
        assert len(run.tokens(run.submit([3], 3))) == 3


def test_what_is_wrong_with_a_request_meets_its_caller_and_not_the_engine() -> None:
    with EngineRun(ScriptedExecutor()) as run:
        with pytest.raises(TypeError):
            run.submit([3], 3, eos_token_ids=([1],))  # type: ignore[arg-type]
        assert run.engine.snapshot().failed is None
        assert run.tokens(run.submit([3], 3)) == made_up_answer([3], 3, 1000)


def test_seed_is_drawn_at_arrival_and_kept_when_given() -> None:
    with EngineRun(executor := ScriptedExecutor()) as run:
        for seed in (None, None, 7, -1, 2**64 - 1):
            run.wait(run.submit([3], SamplingParams(max_tokens=1, seed=seed)))
        resolved = run.engine.resolve(SamplingParams(), 10)
        assert run.engine.resolve(resolved, 10) is resolved
    seeds = [new.sampling.seed for plan in executor.plans for new in plan.new]
    assert seeds[2:] == [7, -1, 2**64 - 1]
    assert None not in seeds
    assert seeds[0] != seeds[1]
