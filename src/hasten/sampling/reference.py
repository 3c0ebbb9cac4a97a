"""Drawing a token from logits in NumPy: what the native sampler computes, written plainly.

Order: logit_bias, repetition, presence and frequency penalty; then greedy, or temperature, top_k, top_p, min_p, draw.
Ties go to the lower token id everywhere. Log-probabilities are those of the model's own logits, before all of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hasten.request import SamplingParams, TokenLogprobs

Logits = npt.NDArray[np.float32]  # [vocab_size]
Doubles = npt.NDArray[np.float64]


def draw(logits: Logits, sampling: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> int:
    """The next token after prompt + output.

    A draw depends on the seed and the token's position alone, not on the draws before it.
    """
    adjusted = adjust(logits, sampling, prompt, output)
    if sampling.is_greedy:
        return int(np.argmax(adjusted))
    token_ids, probs = distribution(adjusted, sampling)
    seed = (sampling.seed or 0) % 2**64
    uniform = np.random.Generator(np.random.Philox(key=np.array([seed, len(prompt) + len(output)], dtype=np.uint64))).random()
    index = int(np.searchsorted(np.cumsum(probs), uniform, side="right"))
    return int(token_ids[min(index, len(token_ids) - 1)])  # rounding may leave the last sum just below 1


def adjust(logits: Logits, sampling: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> Doubles:
    """Logits after bias and penalties: [vocab_size] float64, new. Biases for ids outside the vocabulary are ignored."""
    adjusted = logits.astype(np.float64)
    for token_id, bias in sampling.logit_bias:
        if token_id < len(adjusted):
            adjusted[token_id] += bias
    if sampling.repetition_penalty != 1.0:
        seen = np.unique(np.array([*prompt, *output], dtype=np.int64))
        values = adjusted[seen]
        adjusted[seen] = np.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    for token_id, count in Counter(output).items():
        adjusted[token_id] -= sampling.presence_penalty + sampling.frequency_penalty * count
    return adjusted


def distribution(adjusted: Doubles, sampling: SamplingParams) -> tuple[npt.NDArray[np.int64], Doubles]:
    """Token ids that may be drawn, likeliest first, and their probabilities (sum 1).

    top_k keeps the k best; top_p, of what is left, the shortest head whose sum reaches it; min_p drops what is below
    min_p × the best. The best token always stays.
    """
    order = np.argsort(-adjusted, kind="stable")
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    scaled = adjusted[order] / sampling.temperature
    probs = np.exp(scaled - scaled[0])
    probs /= probs.sum()
    keep = len(probs)
    if sampling.top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(probs), sampling.top_p)) + 1
    if sampling.min_p > 0.0:
        keep = min(keep, int(np.count_nonzero(probs >= sampling.min_p * probs[0])))
    order, probs = order[:keep], probs[:keep]
    return order, probs / probs.sum()


def log_softmax(logits: Logits) -> Doubles:
    """Log-probabilities, [..., vocab_size] float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    normed: Doubles = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normed


def logprobs_of(logits: Logits, token_id: int, num_top: int) -> TokenLogprobs:
    """Log-probability of `token_id` and of the `num_top` best tokens."""
    values = log_softmax(logits)
    best = np.argsort(-values, kind="stable")[:num_top] if num_top else ()
    return TokenLogprobs(token_id, float(values[token_id]), tuple((int(top), float(values[top])) for top in best))


def is_usable(logits: Logits) -> bool:
    """No NaN, and some finite value: -inf alone is a mask."""
    return not bool(np.isnan(logits).any()) and math.isfinite(float(logits.max()))
