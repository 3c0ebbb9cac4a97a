"""The two frozen objects that cross between planning and running: StepPlan down, StepResult up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hasten.cache.block_pool import BlockId
from hasten.request import RequestId, SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class NewRequest:
    """The executor meets a request: it keeps the tokens and the sampler's state until `finished` names the id."""

    request_id: RequestId
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams  # seed is set


@dataclass(frozen=True, slots=True)
class BlockTableUpdate:
    """The table of `request_id` becomes its first `start` entries followed by `block_ids`.

    A request that grew sends its new blocks with start = the number it had; a preempted one is resumed with start = 0.
    """

    request_id: RequestId
    start: int
    block_ids: npt.NDArray[np.int32]  # [n]


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """A run of tokens of one request: prompt, generated and (later) draft tokens alike.

    Tokens [start, start + num_tokens) of prompt + output are computed and their K/V written. When the chunk ends at the
    last token the executor knows of the request, the executor draws the next token (unless max_tokens is 0) and keeps it.
    """

    request_id: RequestId
    start: int  # position of the first token to compute
    num_tokens: int
    draft_token_ids: tuple[int, ...] = ()
    adapter_id: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, as a delta to what the executor already knows. Applied in the order of the fields."""

    step_id: int
    finished: tuple[RequestId, ...] = ()  # forget these first: ended or cancelled; unknown ids are ignored
    new: tuple[NewRequest, ...] = ()
    block_tables: tuple[BlockTableUpdate, ...] = ()
    chunks: tuple[ScheduledChunk, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What one chunk gave. `token_ids` is empty when the chunk ended before the request's last known token."""

    request_id: RequestId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # aligned with token_ids; empty unless asked for
    # entries for prompt positions start+1 … of this chunk (position 0 has none), when prompt_logprobs was asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None  # this request failed (for example NaN logits); the others are unaffected


@dataclass(frozen=True, slots=True)
class StepResult:
    """In the order of the plan's chunks."""

    step_id: int
    chunks: tuple[ChunkResult, ...]
    compute_ms: float  # wall time inside the executor
    cancelled: bool = False  # the cancel flag was seen between phases: no chunk of this step counts


def table_update(request_id: RequestId, start: int, block_ids: Sequence[BlockId]) -> BlockTableUpdate:
    """A BlockTableUpdate from Python ids."""
    return BlockTableUpdate(request_id, start, np.asarray(block_ids, dtype=np.int32))
