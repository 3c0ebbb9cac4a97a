"""From a model file and a configuration to an engine that can be started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

from hasten.config import EngineConfig, check_ranges
from hasten.engine.choices import settle
from hasten.engine.engine import Engine
from hasten.engine.executor import Executor
from hasten.engine.machine import FreeMemory, cpu_limits, free_memory
from hasten.engine.memory import MemoryPlan, budget, plan_memory
from hasten.errors import DoesNotFit
from hasten.kv_store import KvLayout, KvStoreFormat
from hasten.models.spec import ModelSpec
from hasten.tokenizer.tokenizer import Tokenizer
from hasten.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """What `load_engine` made; `close` stops and frees all of it.

    `config` says what is really used, `reasons` why, by the names of the settings that can be automatic.
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    executor: Executor
    engine: Engine
    config: EngineConfig
    memory: MemoryPlan
    reasons: Mapping[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Stop the engine (open requests are cancelled), free the executor, close the file. Idempotent."""
        self.engine.stop()
        self.executor.close()
        self.checkpoint.close()


def load_engine(model_path: str | os.PathLike[str], config: EngineConfig, *, debug: bool = False) -> LoadedEngine:
    """Open a model and get everything ready to run it; the engine's thread is not started yet.

    Raises: BadFile, Unsupported (the file), UsageError (the configuration), DoesNotFit (memory).
    """
    from hasten.tokenizer import load as load_tokenizer
    from hasten.weights import open_checkpoint

    asked, config = config, resolve_config(config)
    checkpoint = open_checkpoint(model_path)
    try:
        cpus, free = cpu_limits(), _free_memory(config)
        memory = _plan(checkpoint, config, free)
        config = config.resolved(max_model_len=memory.max_model_len)
        # Weights are packed by the compute team without the interpreter lock, the tokenizer is built by code that keeps it:
        # begun in this order they overlap, in the other they do not.
        with ThreadPoolExecutor(1, thread_name_prefix="hasten-load") as pool:
            loading = pool.submit(_executor, checkpoint, config, memory)
            try:
                tokenizer = load_tokenizer(checkpoint.tokenizer, vocab_size=checkpoint.spec.vocab_size)
                executor = loading.result()
                config, reasons = settle(asked, checkpoint.spec, cpus=cpus, free=free, memory=memory, info=executor.info)
                return LoadedEngine(
                    checkpoint, tokenizer, executor, Engine(executor, config, debug=debug), config, memory, reasons
                )
            except BaseException:
                if loading.exception() is None:
                    loading.result().close()
                raise
    except BaseException:
        checkpoint.close()
        raise


def resolve_config(config: EngineConfig) -> EngineConfig:
    """Settle what the model has no say in: threads and the KV format. Raises UsageError for numbers out of range."""
    check_ranges(config)
    return config.resolved(
        threads=config.threads or cpu_limits().num_cpus,
        kv="bf16" if config.kv == "auto" else config.kv,
    )


def _free_memory(config: EngineConfig) -> FreeMemory:
    """Where nothing says what is free, what the user says."""
    try:
        return free_memory()
    except OSError as error:
        if config.memory is None:
            raise DoesNotFit(f"it is not known how much memory is free ({error}): say how much to use with --memory") from None
        return FreeMemory(budget(config.memory, sys.maxsize), "--memory")


def _plan(checkpoint: Checkpoint, config: EngineConfig, free: FreeMemory) -> MemoryPlan:
    spec = checkpoint.spec
    if config.executor == "reference":
        layout = KvLayout("f32", spec.num_layers, spec.num_kv_heads, spec.head_dim)
        weight_bytes, scratch_bytes = dense_bytes(spec), reference_scratch_bytes(spec, config.max_num_batched_tokens)
    else:
        from hasten.engine import native

        layout = KvLayout(cast(KvStoreFormat, config.kv), spec.num_layers, spec.num_kv_heads, spec.head_dim)
        weight_bytes = native.weight_bytes(checkpoint)
        options = {"max_model_len": config.max_model_len, **_step_limits(config), **_native_options(config)}
        scratch_bytes = native.scratch_bytes(spec, **options)
    return plan_memory(
        spec,
        config,
        layout,
        budget_bytes=budget(config.memory, free.num_bytes),
        weight_bytes=weight_bytes,
        scratch_bytes=scratch_bytes,
    )


def _step_limits(config: EngineConfig) -> dict[str, Any]:
    return {"max_num_batched_tokens": config.max_num_batched_tokens, "max_num_seqs": config.max_num_seqs}


def _native_options(config: EngineConfig) -> dict[str, Any]:
    """Of a config that `resolve_config` has settled."""
    return {"threads": config.threads, "kv_format": config.kv}


def dense_bytes(spec: ModelSpec) -> int:
    """Bytes of all weights in float32."""
    q_dim, kv_dim = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = spec.hidden_size * (2 * q_dim + 2 * kv_dim + 3 * spec.intermediate_size + 2)
    embeddings = spec.vocab_size * (1 if spec.tied_head else 2)
    return 4 * (spec.num_layers * layer + spec.hidden_size * (embeddings + 1))


def reference_scratch_bytes(spec: ModelSpec, max_num_batched_tokens: int) -> int:
    """Bytes of the arrays of the reference executor's widest step: activations, and the scores of a full context."""
    per_token = (
        4 * spec.hidden_size + 3 * spec.intermediate_size + 2 * spec.num_q_heads * spec.max_position + 2 * spec.vocab_size
    )
    return 4 * max_num_batched_tokens * per_token


def _executor(checkpoint: Checkpoint, config: EngineConfig, memory: MemoryPlan) -> Executor:
    limits = {"num_blocks": memory.num_blocks, "max_model_len": memory.max_model_len, **_step_limits(config)}
    if config.executor == "reference":
        from hasten.engine.reference import ReferenceExecutor

        return ReferenceExecutor(checkpoint, **limits)
    from hasten.engine.native import NativeExecutor

    return NativeExecutor(checkpoint, **limits, isa=config.isa, **_native_options(config))
