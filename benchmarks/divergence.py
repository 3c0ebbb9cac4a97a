"""Mean KL divergence and top-1 agreement of the native executor with float32, on held-out text.

The reference is the same file dequantized to float32 (NumPy). Both read held-out documents of hasten.data in windows of
512 tokens; every position but each window's last is compared. The native executor is asked for its 1,024 best tokens at each
position; all others are one bucket, on both sides. What the figure leaves out is the divergence inside that bucket times
the bucket's probability, which `Figures.sum_rest` holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hasten.data import documents
from hasten.engine.native import NativeExecutor
from hasten.engine.reference import load_decoder
from hasten.kv_store import BLOCK_SIZE
from hasten.models.decoder import Decoder, DenseKvStore
from hasten.request import SamplingParams, TokenLogprobs
from hasten.sampling.reference import log_softmax
from hasten.scheduler.plan import NewRequest, ScheduledChunk, StepPlan, table_update
from hasten.tokenizer import load
from hasten.weights.checkpoint import Checkpoint

WINDOW = 512  # tokens of context at most
MIN_WINDOW = 64  # shorter ends of documents say little
NUM_TOP = 1024
KV_FORMATS = ("f32", "bf16", "int8")
# what is promised, for a model of the demo model's size
MAX_DIVERGENCE = 0.0003  # bf16 KV
MIN_AGREEMENT = 0.988  # bf16 KV
MAX_ADDED_BY_INT8 = 0.0005  # to the divergence of bf16 KV


class WideSampling(SamplingParams):
    """Sampling parameters without the limit of 20 alternatives that requests have."""

    __slots__ = ()

    def __post_init__(self) -> None:
        pass


SCORE = WideSampling(max_tokens=0, temperature=0.0, seed=0, prompt_logprobs=NUM_TOP)


@dataclass
class Figures:
    """Sums over positions, for one executor."""

    divergences: list[npt.NDArray[np.float64]] = field(default_factory=list)
    num_same_best: int = 0
    sum_rest: float = 0.0  # probability outside the NUM_TOP

    def add(self, expected: npt.NDArray[np.float64], entries: tuple[TokenLogprobs, ...]) -> None:
        """expected: [positions, vocab] log-probabilities; entries: of the same positions."""
        ids = np.array([[token_id for token_id, _ in entry.top] for entry in entries])
        actual = np.array([[logprob for _, logprob in entry.top] for entry in entries])
        wanted = np.take_along_axis(expected, ids, axis=1)
        inside = (np.exp(wanted) * (wanted - actual)).sum(axis=1)
        expected_rest, actual_rest = (1 - np.exp(side).sum(axis=1) for side in (wanted, actual))
        floor = 1e-12  # float32 log-probabilities sum to 1 within 1e-6: below that a rest is noise
        expected_rest, actual_rest = np.maximum(expected_rest, floor), np.maximum(actual_rest, floor)
        outside = np.where(expected_rest > 1e-5, expected_rest * np.log(expected_rest / actual_rest), 0.0)
        self.divergences.append(inside + outside)
        self.num_same_best += int((expected.argmax(axis=1) == ids[:, 0]).sum())
        self.sum_rest += float(expected_rest.sum())

    @property
    def num_positions(self) -> int:
        return sum(map(len, self.divergences))

    @property
    def mean_divergence(self) -> float:
        return float(np.concatenate(self.divergences).mean())

    @property
    def standard_error(self) -> float:
        """Of the mean, each window taken as one sample (neighbouring positions are not independent)."""
        means = [float(window.mean()) for window in self.divergences]
        return float(np.std(means) / len(means) ** 0.5)

    @property
    def agreement(self) -> float:
        return self.num_same_best / self.num_positions


def windows(checkpoint: Checkpoint, num_tokens: int) -> Iterator[list[int]]:
    """Windows of held-out text until `num_tokens` positions can be compared; stops early when the text ends."""
    tokenizer = load(checkpoint.tokenizer, vocab_size=checkpoint.spec.vocab_size)
    total = 0
    for document in documents("held_out"):
        token_ids = tokenizer.encode(document.text)
        for start in range(0, len(token_ids), WINDOW):
            window = token_ids[start : start + WINDOW]
            if len(window) >= MIN_WINDOW and total < num_tokens:
                total += len(window) - 1
                yield window


def native_entries(executor: NativeExecutor, window: list[int]) -> tuple[TokenLogprobs, ...]:
    """The NUM_TOP best tokens after each token but the last."""
    new = NewRequest(1, tuple(window), SCORE)
    table = table_update(1, 0, range(-(-len(window) // BLOCK_SIZE)))
    plan = StepPlan(0, (1,), (new,), (table,), (ScheduledChunk(1, 0, len(window)),))
    (chunk,) = executor.submit(plan).result().chunks
    if chunk.error:
        raise RuntimeError(chunk.error)
    return chunk.prompt_logprobs


def reference_logprobs(decoder: Decoder, window: list[int]) -> npt.NDArray[np.float64]:
    """[len(window) - 1, vocab] log-probabilities."""
    return log_softmax(decoder.logits(decoder.hidden(window[:-1], 0, DenseKvStore())))


def measure(checkpoint: Checkpoint, num_tokens: int, threads: int) -> dict[str, Figures]:
    """Of each KV format, over at least `num_tokens` positions. Raises ValueError when the held-out text has fewer."""
    decoder = load_decoder(checkpoint)
    executors = {
        kv_format: NativeExecutor(
            checkpoint,
            num_blocks=WINDOW // BLOCK_SIZE,
            max_model_len=WINDOW,
            max_num_batched_tokens=WINDOW,
            max_num_seqs=1,
            kv_format=kv_format,
            threads=threads,
        )
        for kv_format in KV_FORMATS
    }
    figures = {kv_format: Figures() for kv_format in KV_FORMATS}
    for window in windows(checkpoint, num_tokens):
        expected = reference_logprobs(decoder, window)
        for kv_format, executor in executors.items():
            figures[kv_format].add(expected, native_entries(executor, window))
    for executor in executors.values():
        executor.close()
    num_positions = figures["bf16"].num_positions
    if num_positions < num_tokens:
        raise ValueError(f"the held-out text has {num_positions} positions, {num_tokens} are asked for")
    return figures
