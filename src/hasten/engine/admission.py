"""What the engine accepts: the limits, and how a request is made to fit them, before it is queued."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass

from hasten.engine.executor import ExecutorInfo
from hasten.errors import InvalidRequest, PromptTooLong
from hasten.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest prompt + answer, by the context and by the KV pool: a lone request may use all of the pool."""

    max_model_len: int
    max_pool_tokens: int
    vocab_size: int

    @classmethod
    def of(cls, info: ExecutorInfo) -> Limits:
        return cls(info.max_model_len, info.num_blocks * info.block_size, info.vocab_size)

    @property
    def max_tokens_total(self) -> int:
        return min(self.max_model_len, self.max_pool_tokens)

    def check_prompt(self, token_ids: Sequence[int]) -> None:
        """Raises InvalidRequest (empty prompt, no id or one outside the vocabulary) or PromptTooLong with both numbers."""
        num_tokens = len(token_ids)
        if num_tokens == 0:
            raise InvalidRequest("the prompt is empty: it needs at least one token", param="prompt")
        if num_tokens > self.max_model_len:
            raise PromptTooLong(
                f"prompt has {num_tokens} tokens, max_model_len is {self.max_model_len}: shorten it, or start with a larger "
                "--max-model-len"
            )
        if num_tokens > self.max_pool_tokens:
            raise PromptTooLong(
                f"prompt has {num_tokens} tokens, the KV pool holds {self.max_pool_tokens} (max_model_len is "
                f"{self.max_model_len}): shorten it, or start with a larger --memory"
            )
        if set(map(type, token_ids)) != {int}:
            wrong = next(token_id for token_id in token_ids if type(token_id) is not int)
            raise InvalidRequest(f"a token id must be a whole number (int), got {wrong!r}", param="prompt")
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size:
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size)
            raise InvalidRequest(f"token id {wrong} is outside the vocabulary (0 … {self.vocab_size - 1})", param="prompt")

    def check_sampling(self, params: SamplingParams) -> None:
        """Raises InvalidRequest for token ids outside the vocabulary."""
        biased = [token_id for token_id, _ in params.logit_bias]
        for name, token_ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", biased)):
            wrong = [token_id for token_id in token_ids if token_id >= self.vocab_size]
            if wrong:
                raise InvalidRequest(
                    f"{name}: token id {wrong[0]} is outside the vocabulary (0 … {self.vocab_size - 1})", param=name
                )


def resolve_sampling(params: SamplingParams, *, num_prompt_tokens: int, limits: Limits) -> SamplingParams:
    """`params` with nothing left open: the seed drawn if there is none, max_tokens cut to what fits after the prompt.

    A prompt that fills the context leaves 0 tokens. Resolving twice changes nothing.
    """
    room = max(0, limits.max_tokens_total - num_prompt_tokens)
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    seed = int.from_bytes(os.urandom(8), "little") if params.seed is None else params.seed
    if (max_tokens, seed) == (params.max_tokens, params.seed):
        return params
    return dataclasses.replace(params, max_tokens=max_tokens, seed=seed)
