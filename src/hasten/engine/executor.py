"""The one protocol that every way of running a step implements: reference, native, later another process or a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hasten.errors import HastenError
from hasten.kv_store import BLOCK_SIZE, KvLayout
from hasten.scheduler.plan import StepPlan, StepResult


class BadPlan(HastenError, ValueError):  # noqa: N818 (a plan is bad: never the user's doing)
    """A plan contradicts what the executor knows."""


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What the engine must know of an executor to plan for it."""

    num_blocks: int
    block_size: int  # tokens in a KV block
    vocab_size: int
    max_model_len: int
    max_num_batched_tokens: int
    weight_bytes: int
    kv_bytes: int
    scratch_bytes: int
    numerics_profile: str  # fingerprint of formats and kernels that fix the numbers: the system_fingerprint
    description: Mapping[str, str | int | float]  # for /config and the start-up lines: isa, threads, formats …


def make_info(
    layout: KvLayout,
    *,
    num_blocks: int,
    vocab_size: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    weight_bytes: int,
    scratch_bytes: int,
    profile: str,
    description: Mapping[str, str | int | float],
) -> ExecutorInfo:
    """The info of an executor whose K/V lie in `layout`. `profile`: all that fixes its numbers, in words."""
    return ExecutorInfo(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        weight_bytes=weight_bytes,
        kv_bytes=num_blocks * layout.block_bytes,
        scratch_bytes=scratch_bytes,
        numerics_profile=hashlib.blake2b(profile.encode(), digest_size=6).hexdigest(),
        description=description,
    )


class StepHandle(Protocol):
    """A step that is running."""

    def result(self) -> StepResult:
        """Wait (GIL released) and return. Raises HastenError if the step could not run at all."""
        ...

    def cancel(self) -> None:
        """Ask the step to stop at the next phase border; result() then has cancelled=True. Safe from any thread."""
        ...


class Executor(Protocol):
    """Keeps tokens, sampler state and K/V of live requests; runs one step at a time.

    `submit` returns at once; a second submit before result() is an error. A step that was cancelled may have written
    part of its K/V and nothing else: the same chunks can be planned again.
    """

    @property
    def info(self) -> ExecutorInfo: ...

    def submit(self, plan: StepPlan) -> StepHandle: ...

    def close(self) -> None:
        """Stop threads, free memory. Idempotent."""
        ...
