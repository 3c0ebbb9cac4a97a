"""The golden files against the installed torch and transformers: computed again in part, by the script that made them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.compare import assert_close
from tests.support.golden import golden
from tests.support.toy_models import GREEDY_TOY, TOYS, toy_prompt

# float32 sums in another order by another build of torch, on logits from -15 to 15
ATOL = 1e-4

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]  # what torch warns of is not ours


@pytest.mark.parametrize("name", ["grouped", "llama3"])
def test_toy_logits_are_computed_again(name: str):
    from scripts.make_golden import logits_of, toy_model

    spec, seed = TOYS[name]
    assert_close(logits_of(toy_model(spec, seed), toy_prompt(spec, seed)), golden("toys")[f"{name}.logits"], atol=ATOL)


def test_a_greedy_answer_is_computed_again():
    """16 tokens, one forward pass over all tokens so far for each: no cache takes part."""
    from scripts.make_golden import logits_of, toy_model

    spec, seed = GREEDY_TOY
    model, token_ids, answers = toy_model(spec, seed), toy_prompt(spec, 100, num_tokens=4), golden("toy_greedy")
    for expected, gap in zip(answers["tokens"][0][:16], answers["gaps"][0][:16], strict=True):
        logits = logits_of(model, token_ids)[-1]
        second, best = np.sort(logits)[-2:]
        assert int(logits.argmax()) == expected
        assert_close([best - second], [gap], atol=2 * ATOL)
        token_ids.append(int(expected))


@pytest.mark.parametrize("name", ["default", "linear", "llama3"])
def test_rope_frequencies_are_computed_again(name: str):
    from scripts.make_golden import ROPES, rope_frequencies

    assert_close(rope_frequencies(ROPES[name]), golden("rope")[name], atol=0.0, rtol=1e-6)
