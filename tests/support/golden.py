"""Golden files (scripts/make_golden.py) and the runs that are compared with them, on any executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hasten.engine.executor import Executor
from hasten.engine.reference import ReferenceExecutor
from hasten.request import SamplingParams, TokenLogprobs
from hasten.scheduler.plan import StepPlan
from hasten.weights.checkpoint import Checkpoint
from tests.support.native_driver import Driver, Track, native

GOLDEN = Path(__file__).parent.parent / "oracle" / "golden"
EXECUTORS = ("reference", "native")
RUNS = ("reference", "native f32", "native bf16")  # executor and KV format
NUM_TOP = 20  # the most alternatives a request may ask for


def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as file:
        return dict(file)


def executor(kind: str, checkpoint: Checkpoint, **options: Any) -> Executor:
    """`kind`: one of EXECUTORS or of RUNS."""
    name, _, kv_format = kind.partition(" ")
    if name == "native":
        return native(checkpoint, **({"kv_format": kv_format} if kv_format else {}), **options)
    defaults = {"num_blocks": 96, "max_model_len": 512, "max_num_batched_tokens": 512, "max_num_seqs": 64}
    return ReferenceExecutor(checkpoint, **{**defaults, **options})


def prompt_logprobs(executor: Executor, prompt: list[int]) -> list[TokenLogprobs]:
    """Of prompt[1:] and, as one more, of what comes after: every position's best tokens."""
    track = Track(1, tuple(prompt), SamplingParams(temperature=0.0, max_tokens=1, logprobs=NUM_TOP, prompt_logprobs=NUM_TOP), 1)
    Driver(executor).run([track])
    assert track.error is None
    executor.submit(StepPlan(10**6, finished=(1,))).result()
    return [*track.prompt_logprobs, *track.logprobs]


def check_greedy(
    executor: Executor, prompts: list[list[int]], answers: dict[str, np.ndarray], *, tie: float, compared: float
) -> None:
    """The first token of each answer that differs from the golden one is a tie: its two best logits are closer than `tie`.

    prompts: the first ones of `answers`, or all of them.
    `compared`: share of all tokens that must be equal before such ties, so that the comparison says something.
    """
    num_tokens = answers["tokens"].shape[1]
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    tracks = [Track(i + 1, tuple(prompt), sampling, num_tokens) for i, prompt in enumerate(prompts)]
    Driver(executor).run(tracks)
    num_equal = 0
    for track, tokens, gaps in zip(tracks, answers["tokens"], answers["gaps"], strict=False):
        different = np.flatnonzero(np.array(track.token_ids) != tokens)
        first = int(different[0]) if len(different) else num_tokens
        assert first == num_tokens or gaps[first] < tie, f"prompt {track.request_id - 1}, token {first}, gap {gaps[first]}"
        num_equal += first
    share = num_equal / (num_tokens * len(prompts))
    assert share >= compared, f"only {share:.0%} of the tokens come before a tie"
