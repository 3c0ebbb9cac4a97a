"""Runs requests on an executor the way a scheduler would: chunk sizes, company and preemptions chosen by the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hasten.engine.executor import Executor
from hasten.engine.native import NativeExecutor
from hasten.kv_store import BLOCK_SIZE
from hasten.request import SamplingParams, TokenLogprobs
from hasten.scheduler.plan import BlockTableUpdate, ChunkResult, NewRequest, ScheduledChunk, StepPlan, table_update
from hasten.weights.checkpoint import Checkpoint


def native(checkpoint: Checkpoint, **options: object) -> NativeExecutor:
    """A NativeExecutor with room for small tests; `options` replace the defaults."""
    defaults = {"num_blocks": 96, "max_model_len": 512, "max_num_batched_tokens": 512, "max_num_seqs": 64,
                "kv_format": "bf16", "threads": 2}  # fmt: skip
    return NativeExecutor(checkpoint, **{**defaults, **options})


@dataclass
class Track:
    """One request on its way: what it was asked, what it has so far."""

    request_id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    num_tokens: int  # to draw
    chunk: int = 512  # most prompt tokens in one step
    preempt_after: int | None = None  # drawn tokens after which K/V and blocks are lost once
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: str | None = None
    num_computed: int = 0
    num_blocks: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.error is not None or len(self.token_ids) >= self.num_tokens

    @property
    def answer(self) -> tuple[list[int], list[TokenLogprobs]]:
        return self.token_ids, self.logprobs


class Driver:
    """Plans all unfinished tracks into every step."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        # taken from the end, so that tables are neither sorted nor contiguous
        self._free = [*range(0, executor.info.num_blocks, 2), *range(1, executor.info.num_blocks, 2)]
        self._step_id = 0
        self._finished: list[int] = []

    def run(self, tracks: Sequence[Track]) -> None:
        fresh = list(tracks)
        while any(not track.is_done for track in tracks):
            live = [track for track in tracks if not track.is_done]
            tables, chunks = [], []
            for track in live:
                self._preempt(track)
                known = len(track.prompt) + len(track.token_ids)
                num_tokens = min(known - track.num_computed, track.chunk)
                tables += self._grow(track, track.num_computed + num_tokens)
                chunks.append(ScheduledChunk(track.request_id, track.num_computed, num_tokens))
            new = tuple(NewRequest(t.request_id, t.prompt, t.sampling) for t in fresh)
            plan = StepPlan(self._step_id, tuple(self._finished), new, tuple(tables), tuple(chunks))
            fresh, self._finished = [], []
            self._step_id += 1
            result = self.executor.submit(plan).result()
            for track, chunk, out in zip(live, chunks, result.chunks, strict=True):
                self._apply(track, chunk, out)

    def _preempt(self, track: Track) -> None:
        if track.preempt_after is not None and len(track.token_ids) >= track.preempt_after:
            track.preempt_after = None
            self._free = track.blocks + self._free
            track.blocks, track.num_blocks, track.num_computed = [], 0, 0

    def _grow(self, track: Track, num_tokens: int) -> list[BlockTableUpdate]:
        start, needed = track.num_blocks, -(-num_tokens // BLOCK_SIZE)
        if needed <= start:
            return []
        fresh = [self._free.pop() for _ in range(needed - start)]
        track.blocks += fresh
        track.num_blocks = needed
        return [table_update(track.request_id, start, fresh)]

    def _apply(self, track: Track, chunk: ScheduledChunk, out: ChunkResult) -> None:
        assert out.request_id == track.request_id
        track.num_computed += chunk.num_tokens
        track.token_ids += out.token_ids
        track.logprobs += out.logprobs
        track.prompt_logprobs += out.prompt_logprobs
        track.error = out.error
        if track.is_done:
            self._finished.append(track.request_id)
            self._free += track.blocks


def generate(executor: Executor, prompt: Sequence[int], sampling: SamplingParams, num_tokens: int, **options: object) -> Track:
    """One request alone."""
    track = Track(1, tuple(prompt), sampling, num_tokens, **options)  # type: ignore[arg-type]
    Driver(executor).run([track])
    executor.submit(StepPlan(10**6, finished=(1,))).result()
    return track
