"""The native sampler against distributions computed in float64 here, on a model whose logits the test chooses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hasten.request import SamplingParams
from hasten.scheduler.plan import NewRequest, ScheduledChunk, StepPlan, table_update
from tests.support.compare import assert_close
from tests.support.golden import EXECUTORS, executor
from tests.support.native_driver import Driver, Track, generate, native
from tests.support.toy_checkpoint import logit_checkpoint

Doubles = npt.NDArray[np.float64]

LOGITS = np.array([1.0, 2.5, -0.5, 2.0, 0.0, 1.5, 2.5, -3.0, 0.5, 1.0, -1.0, 3.0])  # ids 1 and 6 tie, so do 0 and 9


def softmax(logits: Doubles) -> Doubles:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def allowed(logits: Doubles, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Doubles:
    """Probabilities after the cuts, [vocab], by sorting everything; ties keep the order of ids."""
    order = np.argsort(-logits, kind="stable")
    probs = softmax(logits / temperature)[order]
    keep = np.ones(len(order), dtype=bool)
    if top_k > 0:
        keep[top_k:] = False
    probs = np.where(keep, probs, 0) / probs[keep].sum()
    if top_p < 1:
        keep &= np.concatenate([[0.0], np.cumsum(probs)[:-1]]) < top_p
    keep &= probs >= min_p * probs[0]
    out = np.zeros(len(logits))
    out[order] = np.where(keep, probs, 0) / probs[keep].sum()
    return out


def draws(logits: npt.NDArray[np.floating], num: int, *, prompt: Sequence[int] = (0,), **params: Any) -> list[int]:
    """`num` draws over 64 seeds."""
    executor = native(logit_checkpoint(logits), max_model_len=1024, num_blocks=2048)
    tracks = [Track(i + 1, tuple(prompt), SamplingParams(seed=i * 7919, **params), num_tokens=-(-num // 64)) for i in range(64)]
    Driver(executor).run(tracks)
    return [token for track in tracks for token in track.token_ids]


def assert_drawn_from(token_ids: Sequence[int], probs: Doubles) -> None:
    """Pearson's chi-square; a right sampler stays below mean + 4.5 sigma in all but 1 of 10^4 choices of seeds."""
    counts = np.bincount(token_ids, minlength=len(probs))
    assert not counts[probs == 0].any(), f"tokens drawn that are cut: {np.flatnonzero(counts * (probs == 0))}"
    expected = probs[probs > 0] * len(token_ids)
    freedom = len(expected) - 1
    chi_square = ((counts[probs > 0] - expected) ** 2 / expected).sum()
    assert chi_square <= freedom + 4.5 * math.sqrt(2 * freedom), (
        f"chi-square {chi_square:.1f} with {freedom} degrees of freedom"
    )


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 3.0, "min_p": 0.2},
        {"top_k": 5},
        {"top_p": 0.8},
        {"temperature": 1.7, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
    ],
)
def test_draws_follow_the_distribution(params: dict[str, float]) -> None:
    assert_drawn_from(draws(LOGITS, 6400, **{"temperature": 1.0, **params}), allowed(LOGITS, **params))


def test_chi_square_notices_a_wrong_temperature() -> None:
    with pytest.raises(AssertionError, match="chi-square"):
        assert_drawn_from(draws(LOGITS, 6400, temperature=1.0), allowed(LOGITS, temperature=1.1))


@pytest.mark.parametrize("seed", range(8))
def test_support_sets_match_on_a_large_vocabulary(seed: int) -> None:
    """Cuts that leave few tokens, of thousands, with ties: every token of the set is drawn and no other."""
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal(3000) * 2, 1)  # steps of 0.1: plenty of ties
    params = [
        {"top_k": 3}, {"top_k": 70, "temperature": 50.0}, {"top_p": 0.02}, {"min_p": 0.6, "temperature": 2.0},
        {"top_p": 0.1, "temperature": 1.3}, {"top_k": 40, "top_p": 0.5}, {"top_k": 1}, {"top_p": 1e-9},
    ][seed]  # fmt: skip
    probs = allowed(logits, **params)
    assert set(draws(logits, 3200, **{"temperature": 1.0, **params})) == set(np.flatnonzero(probs).tolist())


def test_infinitely_unlikely_tokens_are_never_drawn() -> None:
    logits = np.array([0.0, -np.inf, 1.0, -np.inf, 0.5])
    assert_drawn_from(draws(logits, 3200, temperature=1.0), softmax(logits))
    assert set(draws(logits, 640, temperature=1.0, top_k=4)) == {0, 2, 4}


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    assert set(draws(LOGITS, 64, temperature=temperature)) == {11}


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    logits = LOGITS.copy()
    logits[11] = 0.0
    assert set(draws(logits, 64, temperature=0.0, top_k=5, top_p=0.1)) == {1}


def test_seeds_reproduce_and_differ() -> None:
    executor = native(logit_checkpoint(LOGITS))
    runs = [generate(executor, [0], SamplingParams(seed=seed), 40).token_ids for seed in (1, 1, 2, -1, 2**64 - 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert runs[3] == runs[4]  # two's complement
    # the draw at a position does not depend on how the request got there
    assert generate(executor, [0, *runs[0][:10]], SamplingParams(seed=1), 30).token_ids == runs[0][10:]


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    logits = np.zeros(2)
    executor = native(logit_checkpoint(logits), max_model_len=512, num_blocks=1024)
    tracks = [Track(i + 1, (0,), SamplingParams(seed=i), num_tokens=200) for i in range(64)]
    Driver(executor).run(tracks)
    bits = np.array([track.token_ids for track in tracks]) * 2.0 - 1
    limit = 4.5 / math.sqrt(bits.size)  # standard error of the mean of products of fair signs
    assert abs(bits.mean()) < limit
    assert abs((bits[:, 1:] * bits[:, :-1]).mean()) < limit
    assert abs((bits[1:] * bits[:-1]).mean()) < limit


def penalised(logits: Doubles, prompt: Sequence[int], output: Sequence[int], params: SamplingParams) -> Doubles:
    out = logits.copy()
    for token, bias in params.logit_bias:
        out[token] += bias
    for token in {*prompt, *output}:
        out[token] = out[token] / params.repetition_penalty if out[token] > 0 else out[token] * params.repetition_penalty
    for token, count in Counter(output).items():
        out[token] -= params.presence_penalty + params.frequency_penalty * count
    return out


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.7},
        {"frequency_penalty": 0.4},
        {"frequency_penalty": -0.5, "presence_penalty": -1.0},
        {"logit_bias": ((11, -100.0), (7, 4.2))},
        {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2, "logit_bias": ((2, 1.0), (4, 2.25))},
    ],
)
def test_penalties_and_bias_match_a_plain_loop(params: dict[str, Any]) -> None:
    sampling = SamplingParams(temperature=0.0, seed=0, logprobs=1, **params)
    prompt = [3, 11, 3, 5]
    track = generate(native(logit_checkpoint(LOGITS)), prompt, sampling, 60)
    output: list[int] = []
    for token, entry in zip(track.token_ids, track.logprobs, strict=True):
        values = penalised(LOGITS, prompt, output, sampling)
        best = np.sort(values)[::-1]
        assert values[token] >= best[0] - 1e-5  # float32 against float64
        output.append(token)
        # logprobs are the model's own, before penalties
        assert entry.token_id == token
        assert_close(entry.logprob, math.log(softmax(LOGITS)[token]), atol=1e-5)


def test_logit_bias_outside_the_vocabulary_is_ignored() -> None:
    assert set(draws(LOGITS, 64, temperature=0.0, logit_bias=((500, 100.0),))) == {11}


def test_top_logprobs_are_best_first_with_ties_to_the_lower_id() -> None:
    sampling = SamplingParams(temperature=1.0, seed=3, logprobs=12, prompt_logprobs=2)
    track = generate(native(logit_checkpoint(LOGITS)), [4, 7, 7], sampling, 1)
    (entry,) = track.logprobs
    expected = np.log(softmax(LOGITS))
    order = np.argsort(-LOGITS, kind="stable")
    assert [token for token, _ in entry.top] == order.tolist()
    assert_close([logprob for _, logprob in entry.top], expected[order], atol=1e-5)
    assert dict(entry.top)[entry.token_id] == entry.logprob
    assert [e.token_id for e in track.prompt_logprobs] == [7, 7]
    assert_close([e.logprob or 0.0 for e in track.prompt_logprobs], expected[[7, 7]], atol=1e-5)
    assert [len(e.top) for e in track.prompt_logprobs] == [2, 2]


def test_nan_logits_end_that_request_alone() -> None:
    executor = native(logit_checkpoint(LOGITS, nan_tokens=(7,)))
    good = [Track(i, (0, 1, 2), SamplingParams(temperature=0.0, seed=0), 5) for i in (1, 3)]
    bad = [Track(2, (1, 7), SamplingParams(temperature=0.0, seed=0), 5), Track(4, (7,), SamplingParams(seed=0, logprobs=1), 5)]
    Driver(executor).run([good[0], *bad, good[1]])
    assert [track.token_ids for track in good] == [[11] * 5] * 2
    for track in bad:
        assert track.token_ids == []
        assert track.error is not None
        assert "NaN" in track.error


@pytest.mark.parametrize("kind", EXECUTORS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"logit_bias": ((3, 5.0),)}, {"top_k": 2}, {"logprobs": 1}])
def test_one_logit_that_is_no_number_ends_the_request(kind: str, value: float, params: dict[str, Any]) -> None:
    """The greatest of the others would be an answer that nothing tells from a right one."""
    for at in (0, 5, len(LOGITS) - 1):
        logits = LOGITS.copy()
        logits[at] = value
        track = Track(1, (0, 1, 2), SamplingParams(seed=3, **params), 4)
        Driver(executor(kind, logit_checkpoint(logits))).run([track])
        assert track.token_ids == []
        assert track.error is not None


@pytest.mark.parametrize("kind", EXECUTORS)
def test_a_logit_of_minus_infinity_is_a_token_that_is_never_drawn(kind: str) -> None:
    logits = np.where(np.arange(12) == 4, 0.0, -np.inf)
    track = Track(1, (0, 1, 2), SamplingParams(seed=3), 4)
    Driver(executor(kind, logit_checkpoint(logits))).run([track])
    assert (track.token_ids, track.error) == ([4] * 4, None)


@pytest.mark.parametrize("kind", EXECUTORS)
def test_prompt_positions_that_are_no_numbers_end_the_request(kind: str) -> None:
    """Only asked for prompt logprobs are the rows before the last one looked at."""
    logits = LOGITS.copy()
    logits[5] = np.nan
    running = executor(kind, logit_checkpoint(logits))
    for prompt_logprobs, has_failed in ((0, True), (None, False)):
        sampling = SamplingParams(seed=0, max_tokens=0, prompt_logprobs=prompt_logprobs)
        new, table = NewRequest(1, (0, 1, 2), sampling), table_update(1, 0, [0])
        (out,) = running.submit(StepPlan(0, (), (new,), (table,), (ScheduledChunk(1, 0, 3),))).result().chunks
        assert bool(out.error) == has_failed
        running.submit(StepPlan(1, finished=(1,))).result()
