"""What each automatic setting became, and why: for `/config` and the start-up lines."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hasten.config import EngineConfig
from hasten.engine.executor import ExecutorInfo
from hasten.engine.machine import CpuLimits, FreeMemory
from hasten.engine.memory import AUTO_SHARE, MemoryPlan, size
from hasten.models.spec import ModelSpec
from hasten.scheduler.policy import CHUNK_ALONE, CHUNK_BESIDE_DECODES

GIVEN = "given"


def settle(
    asked: EngineConfig, spec: ModelSpec, *, cpus: CpuLimits, free: FreeMemory, memory: MemoryPlan, info: ExecutorInfo
) -> tuple[EngineConfig, Mapping[str, str]]:
    """`asked` with every `auto` replaced by what is really used, and a reason for each such setting, by its name.

    `chunk` alone stays None when it is automatic: it is a rule, not a number; the reason tells it.
    """
    native = asked.executor == "native"
    config = asked.resolved(
        isa=info.description["isa"] if native else asked.isa,
        threads=info.description["threads"] if native else asked.threads or cpus.num_cpus,
        memory=str(memory.budget_bytes),
        max_model_len=memory.max_model_len,
        kv=info.description["kv"],
    )
    reasons = {
        "isa": _isa(asked) if native else "NumPy decides what the reference executor runs on",
        "threads": f"{cpus.describe()}, chosen {config.threads}" + _threads(asked, native),
        "memory": _memory(asked, free, memory),
        "max_model_len": _max_model_len(asked, spec, memory),
        "chunk": _chunk(asked),
        "kv": _kv(asked) if native else "the reference executor computes in f32 throughout",
    }
    return config, reasons


def _isa(asked: EngineConfig) -> str:
    from hasten.ops.kernels import available_isas

    if asked.isa != "auto":
        return GIVEN
    if os.environ.get("HASTEN_ISA", "auto") not in ("", "auto"):
        return f"{GIVEN} by HASTEN_ISA"
    return f"the best that this CPU and this build have: {', '.join(available_isas())}"


def _threads(asked: EngineConfig, native: bool) -> str:
    if not native:
        return "; not used: the reference executor leaves threads to NumPy"
    return "" if asked.threads is None else f" ({GIVEN})"


def _memory(asked: EngineConfig, free: FreeMemory, memory: MemoryPlan) -> str:
    here = f"{size(free.num_bytes)} free by {free.source}"
    return f"{AUTO_SHARE * 100:.0f} % of {here}" if asked.memory is None else f"{GIVEN}; {here}"


def _max_model_len(asked: EngineConfig, spec: ModelSpec, memory: MemoryPlan) -> str:
    if asked.max_model_len is not None:
        return f"{GIVEN}; the model has {spec.max_position} positions"
    if memory.max_model_len == spec.max_position:
        return "all positions that the model has"
    return f"what fits: the model has {spec.max_position} positions, {size(memory.kv_bytes)} are left for KV"


def _chunk(asked: EngineConfig) -> str:
    if asked.chunk is not None:
        return GIVEN
    alone, beside = (min(limit, asked.max_num_batched_tokens) for limit in (CHUNK_ALONE, CHUNK_BESIDE_DECODES))
    return (
        f"at most {alone} prompt tokens of a request in a step while nothing decodes; beside decodes at most {beside}, "
        "of all prompts together"
    )


def _kv(asked: EngineConfig) -> str:
    return "the default: half the memory of f32; int8 halves it again at a loss" if asked.kv == "auto" else GIVEN
