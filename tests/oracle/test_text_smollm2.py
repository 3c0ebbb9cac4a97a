"""The text of real answers: the demo model's own tokenizer on the native executor, streamed and whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten import SamplingParams
from tests.support.native_llm import native_llm


def answers(path: Path, prompt: str, params: SamplingParams) -> tuple[str, list[str], str]:
    """The whole text, the pieces of the stream, and the reason both ended for."""
    with native_llm(path, num_blocks=16, max_model_len=256, threads=1) as llm:
        whole = llm.generate(prompt, params)
        pieces = list(llm.stream(prompt, params))
    last = pieces[-1].output
    assert last is not None
    assert (last.text, last.finish_reason, last.token_ids) == (whole.text, whole.finish_reason, whole.token_ids)
    return whole.text, [piece.text for piece in pieces], whole.finish_reason


@pytest.mark.parametrize("stop", ["l m n", " l m n", "m n o"])
def test_fr_004_a_stop_of_three_letters_with_spaces(smollm2_path: Path, stop: str):
    """Every letter with its space is a token of its own here: the stop string needs three or more of them."""
    prompt, alphabet = "a b c d e f g h", " i j k l m n o p q r s t u v w x y z"
    params = SamplingParams(max_tokens=24, temperature=0.0, stop=(stop,))
    text, pieces, reason = answers(smollm2_path, prompt, params)
    assert text == alphabet[: alphabet.index(stop)]
    assert "".join(pieces) == text
    assert reason == "stop"
    assert len([piece for piece in pieces if piece]) > 1, "the answer did not come in pieces"


def test_fr_003_a_leading_space_and_a_space_before_an_apostrophe_are_kept(smollm2_path: Path):
    prompt = "We say 'maybe'. We say 'maybe'. We say 'maybe'. We say"
    text, pieces, _ = answers(smollm2_path, prompt, SamplingParams(max_tokens=4, temperature=0.0))
    assert text == " 'maybe' is"
    assert "".join(pieces) == text
