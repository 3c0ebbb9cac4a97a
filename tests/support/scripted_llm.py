"""The toy model's tokenizer, with answers written in advance."""

from __future__ import annotations

from hasten.config import EngineConfig
from hasten.engine.build import LoadedEngine, load_engine
from hasten.engine.engine import Engine
from tests.support.scripted import ScriptedExecutor


def scripted(model: str, executor: ScriptedExecutor) -> LoadedEngine:
    loaded = load_engine(model, EngineConfig(executor="reference", memory="100MB"))
    loaded.executor.close()
    engine = Engine(executor, loaded.config, debug=True)
    return LoadedEngine(loaded.checkpoint, loaded.tokenizer, executor, engine, loaded.config, loaded.memory)
