"""What an engine says of itself while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges, counters since start, and whether the engine still works; cheap to read from any thread."""

    num_open: int  # submitted and without their last event: running, waiting, and held under static batching
    num_running: int
    num_waiting: int  # those included that came while the running step computes
    num_free_blocks: int
    num_blocks: int
    num_steps: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    num_finished: Mapping[str, int]  # by finish reason
    last_step_ms: float
    step_ms_sum: float
    failed: str | None = None  # why no request will run again, though nobody told the engine to stop
