"""How much of whom runs in a step: the numbers, apart from the bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.config import Batching

CHUNK_ALONE = 512  # tokens: enough rows to be bound by arithmetic, short enough for a cancel to be seen soon
CHUNK_BESIDE_DECODES = 64  # tokens: about what rides along on one pass over the weights before the streams feel it


@dataclass(frozen=True, slots=True)
class Policy:
    """First come, first served.

    Args:
        max_num_batched_tokens: most tokens in one step, prompt and generated.
        max_num_seqs: most requests in one step.
        chunk: most prompt tokens of one request in one step; 0: no limit but max_num_batched_tokens; None (auto): 512
            when nothing decodes, and beside decodes 64 for all prompts of the step together.
        batching: "static" forms whole batches; see Scheduler.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    chunk: int | None = None
    batching: Batching = "continuous"

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < 1 or self.max_num_seqs < 1 or (self.chunk or 0) < 0:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, max_num_seqs is {self.max_num_seqs} (each at "
                f"least 1), chunk is {self.chunk} (at least 0)"
            )

    def chunk_limit(self) -> int:
        """Most prompt tokens of one request in one step."""
        if self.chunk is None:
            return min(CHUNK_ALONE, self.max_num_batched_tokens)
        return min(self.chunk or self.max_num_batched_tokens, self.max_num_batched_tokens)

    def prompt_budget(self, num_decodes: int) -> int:
        """Most prompt tokens of all requests in a step that also decodes `num_decodes` tokens."""
        left = self.max_num_batched_tokens - num_decodes
        return min(left, CHUNK_BESIDE_DECODES) if self.chunk is None and num_decodes else left
