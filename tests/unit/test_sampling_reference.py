"""The sampler twin: hand-made distributions, every cut, penalties and the ties that fix which token is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hasten.request import SamplingParams
from hasten.sampling.reference import adjust, distribution, draw, is_usable, log_softmax, logprobs_of

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], dtype=np.float32))


def kept(**options: object) -> dict[int, float]:
    sampling = SamplingParams(**options)  # type: ignore[arg-type]
    ids, probs = distribution(adjust(LOGITS, sampling, [], []), sampling)
    return dict(zip(ids.tolist(), probs.tolist(), strict=True))


def test_without_cuts_all_tokens_stay_with_their_probability():
    assert kept() == pytest.approx({0: 0.1, 1: 0.4, 2: 0.05, 3: 0.25, 4: 0.2}, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_k": 2}, {1: 0.4 / 0.65, 3: 0.25 / 0.65}),
        ({"top_k": -1}, {0: 0.1, 1: 0.4, 2: 0.05, 3: 0.25, 4: 0.2}),
        ({"top_p": 0.6}, {1: 0.4 / 0.65, 3: 0.25 / 0.65}),
        ({"top_p": 0.39}, {1: 1.0}),
        ({"min_p": 0.5}, {1: 0.4 / 0.85, 3: 0.25 / 0.85, 4: 0.2 / 0.85}),
        ({"min_p": 1.0}, {1: 1.0}),
        ({"top_k": 3, "top_p": 0.7}, {1: 0.4 / 0.65, 3: 0.25 / 0.65}),  # 0.4 and 0.25 of 0.85 reach 0.7
    ],
)
def test_cuts(options, expected):
    slack = {"min_p": 0.499} if options == {"min_p": 0.5} else options  # 0.2 / 0.4 is on the edge
    assert kept(**slack) == pytest.approx(expected, abs=1e-6)


def test_temperature_sharpens_and_flattens():
    assert kept(temperature=0.5)[1] == pytest.approx(0.16 / (0.01 + 0.16 + 0.0025 + 0.0625 + 0.04), abs=1e-6)
    assert kept(temperature=100.0)[2] == pytest.approx(0.2, abs=0.01)


def test_ties_go_to_the_lower_id():
    flat = np.zeros(100, dtype=np.float32)
    assert draw(flat, SamplingParams(temperature=0.0), [], []) == 0
    sampling = SamplingParams(top_k=2)
    assert distribution(adjust(flat, sampling, [], []), sampling)[0].tolist() == [0, 1]
    assert [token for token, _ in logprobs_of(flat, 5, 3).top] == [0, 1, 2]


def test_penalties_and_bias():
    logits = np.array([2.0, -1.0, 3.0, 0.5], dtype=np.float32)
    sampling = SamplingParams(
        repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((3, 4.0), (99, 1.0))
    )
    # 0 is in the prompt, 1 twice in the output, 3 once in the output (its bias comes before the penalties)
    expected = [1.0, -2.0 - 0.5 - 0.5, 3.0, (0.5 + 4.0) / 2 - 0.5 - 0.25]
    assert adjust(logits, sampling, [0], [1, 1, 3]).tolist() == pytest.approx(expected)
    assert logits.tolist() == [2.0, -1.0, 3.0, 0.5]


def test_draws_follow_the_distribution_and_depend_on_seed_and_position_alone():
    """2,000 positions of one seed: each share within 4 standard deviations."""
    sampling = SamplingParams(seed=3)
    drawn = [draw(LOGITS, sampling, [0] * n, []) for n in range(1, 2001)]
    for token_id, prob in enumerate(np.exp(LOGITS)):
        assert abs(drawn.count(token_id) / 2000 - prob) < 4 * math.sqrt(prob * (1 - prob) / 2000)
    assert draw(LOGITS, sampling, [7] * 5, [1, 2]) == draw(LOGITS, sampling, [0] * 6, [4])
    assert [draw(LOGITS, SamplingParams(seed=-1), [0] * n, []) for n in range(1, 50)] != drawn[:49]


def test_logprobs_are_those_of_the_raw_logits():
    entry = logprobs_of(LOGITS + 5, 3, 2)
    assert entry.logprob == pytest.approx(math.log(0.25), abs=1e-6)
    assert [token for token, _ in entry.top] == [1, 3]
    assert logprobs_of(LOGITS, 3, 0).top == ()
    assert np.exp(log_softmax(LOGITS)).sum() == pytest.approx(1.0)


def test_usable_logits():
    assert is_usable(np.array([-np.inf, 1.0], dtype=np.float32))
    for bad in ([np.nan, 1.0], [-np.inf, -np.inf], [np.inf, 0.0]):
        assert not is_usable(np.array(bad, dtype=np.float32))
