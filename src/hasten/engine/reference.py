"""The reference executor: NumPy float32 on dequantized weights, K/V in blocks that are gathered into dense arrays.

Slow and obvious. It says what a step means; the native executor is tested beside it.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import numpy.typing as npt

from hasten.engine.executor import BadPlan, ExecutorInfo, make_info
from hasten.engine.reference_state import KnownRequest, RequestTable
from hasten.errors import EngineStopped
from hasten.kv_store import BLOCK_SIZE, KvLayout
from hasten.models.decoder import Decoder, Floats
from hasten.quant import FORMATS
from hasten.sampling.reference import draw, is_usable, logprobs_of
from hasten.scheduler.plan import ChunkResult, ScheduledChunk, StepPlan, StepResult
from hasten.weights.checkpoint import Checkpoint

__all__ = ["BadPlan", "ReferenceExecutor"]


class _Cancelled(Exception):  # noqa: N818 (a way out of the layers, not an error)
    pass


class BlockKvStore:
    """K and V of all requests: [num_blocks, num_layers, K or V, num_kv_heads, BLOCK_SIZE, head_dim] float32.

    That is kv_store.py's layout "f32": a block is one contiguous run of bytes.
    """

    def __init__(self, num_blocks: int, layout: KvLayout) -> None:
        self.blocks: Floats = np.zeros(
            (num_blocks, layout.num_layers, 2, layout.num_kv_heads, BLOCK_SIZE, layout.head_dim), dtype=np.float32
        )

    def of(self, block_table: npt.NDArray[np.int32]) -> _RequestKv:
        return _RequestKv(self.blocks, block_table)


class _RequestKv:
    """The K/V of one request, seen through its block table (models.decoder.KvStore)."""

    def __init__(self, blocks: Floats, block_table: npt.NDArray[np.int32]) -> None:
        self._blocks = blocks
        self._table = block_table

    def write(self, layer: int, start: int, keys: Floats, values: Floats) -> None:
        for i in range(len(keys)):
            block_id, slot = self._table[(start + i) // BLOCK_SIZE], (start + i) % BLOCK_SIZE
            self._blocks[block_id, layer, 0, :, slot] = keys[i]
            self._blocks[block_id, layer, 1, :, slot] = values[i]

    def read(self, layer: int, num_tokens: int) -> tuple[Floats, Floats]:
        used = self._table[: -(-num_tokens // BLOCK_SIZE)]
        # [blocks, K or V, heads, slots, dim] → [K or V, blocks × slots, heads, dim]
        gathered = self._blocks[used, layer].transpose(1, 0, 3, 2, 4)
        dense = gathered.reshape(2, -1, *gathered.shape[3:])[:, :num_tokens]
        return dense[0], dense[1]


class ReferenceExecutor:
    """Implements engine.executor.Executor.

    Raises: BadPlan (from submit) when a plan contradicts what the executor knows; nothing has changed then.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
    ) -> None:
        spec = checkpoint.spec
        layout = KvLayout("f32", spec.num_layers, spec.num_kv_heads, spec.head_dim)
        self.decoder = load_decoder(checkpoint)
        self.kv = BlockKvStore(num_blocks, layout)
        self._table = RequestTable(spec.vocab_size, num_blocks, max_model_len, max_num_batched_tokens, max_num_seqs)
        self._running: ReferenceStep | None = None
        self._is_closed = False
        self._info = make_info(
            layout,
            num_blocks=num_blocks,
            vocab_size=spec.vocab_size,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            weight_bytes=self.decoder.weight_bytes,
            scratch_bytes=0,
            profile=f"reference f32 {checkpoint.fingerprint}",
            description={"executor": "reference", "isa": "numpy", "weights": "f32", "kv": "f32"},
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: StepPlan) -> ReferenceStep:
        """Check the plan and take in its delta; the arithmetic is done by result()."""
        if self._is_closed:
            raise EngineStopped("the executor is closed")
        if self._running is not None:
            raise BadPlan(f"step {plan.step_id} was submitted before the result of step {self._running.plan.step_id}")
        self._table.apply(plan)
        self._running = ReferenceStep(self, plan)
        return self._running

    def close(self) -> None:
        self._is_closed = True
        self._table.requests.clear()
        self.kv.blocks = np.zeros((0, *self.kv.blocks.shape[1:]), dtype=np.float32)

    def run(self, step: ReferenceStep) -> StepResult:
        """Compute a submitted step, chunk by chunk. Tokens are kept only if every chunk was computed."""
        started_s = time.perf_counter()
        results: list[ChunkResult] = []
        try:
            results = [self._run_chunk(chunk, step) for chunk in step.plan.chunks]
            step.stop_if_cancelled()
        except _Cancelled:
            return StepResult(step.plan.step_id, (), (time.perf_counter() - started_s) * 1e3, cancelled=True)
        finally:
            self._running = None
        for result in results:
            self._table.requests[result.request_id].tokens.extend(result.token_ids)
        return StepResult(step.plan.step_id, tuple(results), (time.perf_counter() - started_s) * 1e3)

    def _run_chunk(self, chunk: ScheduledChunk, step: ReferenceStep) -> ChunkResult:
        request = self._table.requests[chunk.request_id]
        end = chunk.start + chunk.num_tokens
        token_ids = request.tokens[chunk.start : end]
        hidden = self.decoder.hidden(token_ids, chunk.start, self.kv.of(request.block_table), step.stop_if_cancelled)
        # a position's logits speak of the token after it
        first_wanted = chunk.start if request.sampling.prompt_logprobs is not None else end - 1
        logits = self.decoder.logits(hidden[first_wanted - chunk.start :])
        scored = self._scored(request, first_wanted, len(logits))
        draws = end == len(request.tokens) and request.sampling.max_tokens != 0
        if not all(map(is_usable, [*logits[: len(scored)], *logits[len(logits) - draws :]])):
            return ChunkResult(chunk.request_id, error="the logits are not finite: the model's weights or K/V are damaged")
        num_prompt_top = request.sampling.prompt_logprobs or 0
        prompt_logprobs = tuple(logprobs_of(row, token, num_prompt_top) for row, token in zip(logits, scored, strict=False))
        if not draws:
            return ChunkResult(chunk.request_id, prompt_logprobs=prompt_logprobs)
        prompt, output = request.tokens[: request.prompt_len], request.tokens[request.prompt_len :]
        token_id = draw(logits[-1], request.sampling, prompt, output)
        num_top = request.sampling.logprobs
        logprobs = () if num_top is None else (logprobs_of(logits[-1], token_id, num_top),)
        return ChunkResult(chunk.request_id, (token_id,), logprobs, prompt_logprobs)

    def _scored(self, request: KnownRequest, start: int, num_rows: int) -> list[int]:
        """The prompt tokens that the first of `num_rows` rows of logits, from position `start` on, give logprobs for."""
        if request.sampling.prompt_logprobs is None:
            return []
        return request.tokens[start + 1 : min(start + 1 + num_rows, request.prompt_len)]


class ReferenceStep:
    """A submitted step (engine.executor.StepHandle)."""

    def __init__(self, executor: ReferenceExecutor, plan: StepPlan) -> None:
        self.plan = plan
        self._executor = executor
        self._cancel = threading.Event()
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._executor.run(self)
        return self._result

    def cancel(self) -> None:
        self._cancel.set()

    def stop_if_cancelled(self) -> None:
        if self._cancel.is_set():
            raise _Cancelled


def load_decoder(checkpoint: Checkpoint) -> Decoder:
    """The checkpoint's weights, dequantized to float32 at the exact scales of the file."""

    def tensor(name: str) -> Floats:
        raw = checkpoint.tensor(name)
        return FORMATS[raw.format].dequantize(raw.data).reshape(raw.shape)

    return Decoder(checkpoint.spec, tensor)
