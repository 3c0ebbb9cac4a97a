"""What the reference executor keeps of each live request, and the checks of a plan against it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hasten.engine.executor import BadPlan
from hasten.kv_store import BLOCK_SIZE
from hasten.request import RequestId, SamplingParams
from hasten.scheduler.plan import BlockTableUpdate, NewRequest, ScheduledChunk, StepPlan


@dataclass(slots=True)
class KnownRequest:
    """Tokens of prompt and output, how to draw, and where the K/V are."""

    tokens: list[int]
    prompt_len: int
    sampling: SamplingParams
    block_table: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))


class RequestTable:
    """All live requests. `apply` checks a whole plan before it changes anything."""

    def __init__(
        self, vocab_size: int, num_blocks: int, max_model_len: int, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        self.requests: dict[RequestId, KnownRequest] = {}
        self._vocab_size = vocab_size
        self._num_blocks = num_blocks
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs

    def apply(self, plan: StepPlan) -> None:
        """Take in `finished` (unknown ids are passed over: they may be told twice), `new` and `block_tables`.

        Raises: BadPlan, and then nothing has changed.
        """
        live = {request_id: request for request_id, request in self.requests.items() if request_id not in plan.finished}
        for new in plan.new:
            if new.request_id in live:
                raise BadPlan(f"request {new.request_id} is new, but it is live already")
            live[new.request_id] = self._new(new)
        tables = {request_id: request.block_table for request_id, request in live.items()}
        for update in plan.block_tables:
            tables[update.request_id] = self._grown(update, tables)
        self._check_chunks(plan, live, tables)
        self.requests = live
        for request_id, table in tables.items():
            live[request_id].block_table = table

    def _new(self, new: NewRequest) -> KnownRequest:
        tokens = list(new.prompt_token_ids)
        if not 1 <= len(tokens) <= self._max_model_len:
            raise BadPlan(f"request {new.request_id} has {len(tokens)} prompt tokens, 1 to {self._max_model_len} are possible")
        if not 0 <= min(tokens) <= max(tokens) < self._vocab_size:
            raise BadPlan(f"request {new.request_id} has token ids outside the vocabulary of {self._vocab_size}")
        return KnownRequest(tokens, len(tokens), new.sampling)

    def _grown(self, update: BlockTableUpdate, tables: dict[RequestId, npt.NDArray[np.int32]]) -> npt.NDArray[np.int32]:
        old = tables.get(update.request_id)
        if old is None:
            raise BadPlan(f"a block table for request {update.request_id}, which is not live")
        if not 0 <= update.start <= len(old):
            raise BadPlan(f"request {update.request_id}: table update from entry {update.start}, the table has {len(old)}")
        ids = update.block_ids
        if ids.ndim != 1 or ids.dtype != np.int32:
            raise BadPlan(f"request {update.request_id}: block ids are {ids.dtype} of shape {ids.shape}, [n] int32 is needed")
        if ids.size and not 0 <= ids.min() <= ids.max() < self._num_blocks:
            raise BadPlan(f"request {update.request_id}: block ids outside 0 to {self._num_blocks - 1}: {ids.tolist()}")
        return np.concatenate([old[: update.start], ids])

    def _check_chunks(
        self, plan: StepPlan, live: dict[RequestId, KnownRequest], tables: dict[RequestId, npt.NDArray[np.int32]]
    ) -> None:
        ids = [chunk.request_id for chunk in plan.chunks]
        if len(set(ids)) != len(ids):
            raise BadPlan(f"step {plan.step_id} has two chunks of one request: {ids}")
        if len(ids) > self._max_num_seqs:
            raise BadPlan(f"step {plan.step_id} has {len(ids)} requests, max_num_seqs is {self._max_num_seqs}")
        if plan.num_tokens > self._max_num_batched_tokens:
            raise BadPlan(
                f"step {plan.step_id} has {plan.num_tokens} tokens, max_num_batched_tokens is {self._max_num_batched_tokens}"
            )
        for chunk in plan.chunks:
            if chunk.request_id not in live:
                raise BadPlan(f"a chunk of request {chunk.request_id}, which is not live")
            self._check_chunk(chunk, live[chunk.request_id], len(tables[chunk.request_id]))

    def _check_chunk(self, chunk: ScheduledChunk, request: KnownRequest, num_blocks: int) -> None:
        end = chunk.start + chunk.num_tokens
        what = f"request {chunk.request_id}: chunk of tokens {chunk.start} to {end}"
        if chunk.start < 0 or chunk.num_tokens < 1 or end > len(request.tokens):
            raise BadPlan(f"{what}, it has {len(request.tokens)}")
        if end > self._max_model_len:
            raise BadPlan(f"{what}, max_model_len is {self._max_model_len}")
        if end > num_blocks * BLOCK_SIZE:
            raise BadPlan(f"{what} in {num_blocks} blocks of {BLOCK_SIZE}")
        if chunk.draft_token_ids or chunk.adapter_id:
            raise BadPlan(f"{what} carries draft tokens or an adapter, the reference executor has neither")
