"""One budget for weights, scratch and KV: what is left for KV decides the number of blocks and the longest context."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hasten.config import EngineConfig, parse_size
from hasten.errors import DoesNotFit, UsageError
from hasten.kv_store import BLOCK_SIZE, KvLayout
from hasten.models.spec import ModelSpec

AUTO_SHARE = 0.8  # of what is free: Python, the tokenizer and the page cache of the file live beside the budget
MIN_AUTO_LEN = 512  # tokens: with less than this an automatic max_model_len would be no use to anyone


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Who gets how many bytes. `notes` are sentences for the start-up lines: what was lowered, and why."""

    budget_bytes: int
    weight_bytes: int
    scratch_bytes: int
    block_bytes: int
    num_blocks: int
    max_model_len: int
    notes: tuple[str, ...] = ()

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.scratch_bytes + self.kv_bytes

    def __str__(self) -> str:
        return (
            f"{size(self.total_bytes)} of {size(self.budget_bytes)}: weights {size(self.weight_bytes)}, scratch "
            f"{size(self.scratch_bytes)}, KV {size(self.kv_bytes)} ({self.num_blocks * BLOCK_SIZE} tokens)"
        )


def size(num_bytes: float) -> str:
    """ "1.50 GiB", "12.0 MiB"; below one MiB in KiB."""
    for unit, name, digits in ((1 << 30, "GiB", 2), (1 << 20, "MiB", 1)):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.{digits}f} {name}"
    return f"{num_bytes / 1024:.1f} KiB"


def budget(memory: str | None, free_bytes: int) -> int:
    """Bytes of `--memory`, by default 80 % of what is free. Raises UsageError (not a size) or DoesNotFit (more than free)."""
    if memory is None:
        return int(free_bytes * AUTO_SHARE)
    try:
        num_bytes = parse_size(memory)
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from None
    if num_bytes > free_bytes:
        raise DoesNotFit(f"--memory is {size(num_bytes)}, {size(free_bytes)} are free here: choose a smaller --memory")
    return num_bytes


def plan_memory(
    spec: ModelSpec,
    config: EngineConfig,
    layout: KvLayout,
    *,
    budget_bytes: int,
    weight_bytes: int,
    scratch_bytes: int,
) -> MemoryPlan:
    """Divide the budget. KV gets the rest, at most what max_num_seqs requests of max_model_len tokens need.

    Raises: UsageError if max_model_len is longer than the model's positions; DoesNotFit if the KV of one request of
        max_model_len tokens (auto: of 512) does not fit beside weights and scratch.
    """
    wanted_len = spec.max_position if config.max_model_len is None else config.max_model_len
    if not 1 <= wanted_len <= spec.max_position:
        raise UsageError(f"--max-model-len is {wanted_len}, the model has positions for 1 to {spec.max_position} tokens")
    least_len = min(wanted_len, MIN_AUTO_LEN) if config.max_model_len is None else wanted_len
    num_blocks = max(0, budget_bytes - weight_bytes - scratch_bytes) // layout.block_bytes
    least_blocks = _blocks(least_len)
    if num_blocks < least_blocks:
        needed = weight_bytes + scratch_bytes + least_blocks * layout.block_bytes
        advice = _advice(config, layout, least_len, budget_bytes - weight_bytes, scratch_bytes)
        raise DoesNotFit(
            f"{size(needed)} are needed, the budget is {size(budget_bytes)}: weights {size(weight_bytes)}, scratch "
            f"{size(scratch_bytes)}, KV {size(least_blocks * layout.block_bytes)} for {least_len} tokens; {advice}"
        )
    max_model_len = min(wanted_len, num_blocks * BLOCK_SIZE)
    notes = []
    if max_model_len < wanted_len:
        notes.append(
            f"max_model_len is {max_model_len}, the model could do {wanted_len}: {size(num_blocks * layout.block_bytes)} "
            "are left for KV; raise --memory for more"
        )
    num_blocks = min(num_blocks, config.max_num_seqs * _blocks(max_model_len))
    return MemoryPlan(budget_bytes, weight_bytes, scratch_bytes, layout.block_bytes, num_blocks, max_model_len, tuple(notes))


def _advice(config: EngineConfig, layout: KvLayout, least_len: int, room: int, scratch_bytes: int) -> str:
    """What makes it fit: only options that can.

    Args:
        room: bytes that the weights leave for scratch and KV; may be negative.
    """
    least_blocks = _blocks(least_len)
    kv_room = room - scratch_bytes
    ways = ["raise --memory"]
    if kv_room > 0 and least_len > MIN_AUTO_LEN:
        ways.append("lower --max-model-len")
    native = config.executor == "native"
    if native and layout.format != "int8" and least_blocks * replace(layout, format="int8").block_bytes <= kv_room:
        ways.append("take --kv int8")
    if room > 0 and scratch_bytes > least_blocks * layout.block_bytes:
        batch = f"--max-num-batched-tokens ({config.max_num_batched_tokens})"
        threads = "auto" if config.threads is None else config.threads
        ways.append(f"lower --threads ({threads}) or {batch}: scratch grows with both" if native else f"lower {batch}")
    return ", or ".join(ways)


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)
