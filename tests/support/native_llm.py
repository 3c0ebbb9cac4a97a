"""An LLM on the native executor with a KV pool of a chosen size."""

from __future__ import annotations

from pathlib import Path

from hasten import LLM
from hasten.config import EngineConfig
from hasten.engine.build import LoadedEngine, resolve_config
from hasten.engine.engine import Engine
from hasten.engine.memory import MemoryPlan
from hasten.engine.native import NativeExecutor
from hasten.tokenizer import load as load_tokenizer
from hasten.weights import open_checkpoint


def native_llm(path: Path, *, num_blocks: int, max_model_len: int, **options: object) -> LLM:
    return LLM.on(native_loaded(path, num_blocks=num_blocks, max_model_len=max_model_len, **options))


def native_loaded(path: Path, *, num_blocks: int, max_model_len: int, **options: object) -> LoadedEngine:
    """`options` are fields of EngineConfig. Pool and tables are checked after every step."""
    config = resolve_config(EngineConfig(**options)).resolved(max_model_len=max_model_len)
    checkpoint = open_checkpoint(path)
    assert config.threads is not None
    executor = NativeExecutor(
        checkpoint,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        kv_format=config.kv,
        threads=config.threads,
    )
    tokenizer = load_tokenizer(checkpoint.tokenizer, vocab_size=checkpoint.spec.vocab_size)
    info = executor.info
    memory = MemoryPlan(0, info.weight_bytes, info.scratch_bytes, info.kv_bytes // num_blocks, num_blocks, max_model_len)
    engine = Engine(executor, config, debug=True)
    return LoadedEngine(checkpoint, tokenizer, executor, engine, config, memory)
