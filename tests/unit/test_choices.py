"""What automatic settings become: no `auto` is left, every one has a reason, /config and the start-up lines show them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hasten.config import EngineConfig, ServerConfig, parse_size
from hasten.engine import build
from hasten.engine.build import LoadedEngine, load_engine
from hasten.engine.machine import CpuLimits, FreeMemory
from hasten.engine.memory import size
from hasten.ops.kernels import available_isas, selected_isa
from hasten.server.app import create_app
from hasten.server.local_client import LocalClient
from hasten.server.run import make_state, start_lines
from tests.support.toy_gguf import write_toy_gguf

GIB = 1 << 30
AUTOMATIC = {"isa", "threads", "memory", "max_model_len", "chunk", "kv"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_toy_gguf(tmp_path / "toy.gguf", overrides={"general.sampling.temp": 0.5, "general.sampling.top_k": 40})


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 8 CPUs, a quota of 2.5 of them and 2 GiB free."""
    monkeypatch.delenv("HASTEN_ISA", raising=False)
    monkeypatch.setattr(build, "cpu_limits", lambda: CpuLimits(8, 2.5))
    monkeypatch.setattr(build, "free_memory", lambda: FreeMemory(2 * GIB, "/sys/fs/cgroup/job/memory.max"))


@contextmanager
def loaded_engine(model: Path, **config: Any) -> Iterator[LoadedEngine]:
    loaded = load_engine(model, EngineConfig(**config))
    try:
        yield loaded
    finally:
        loaded.close()


def shown(loaded: LoadedEngine) -> tuple[dict[str, Any], list[str]]:
    """The body of /config and the start-up lines."""
    state = make_state(LocalClient(loaded.engine), loaded, ("toy",), ServerConfig(), None)

    async def get() -> dict[str, Any]:
        transport = httpx.ASGITransport(create_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body: dict[str, Any] = (await client.get("/config")).json()
            return body

    return asyncio.run(get()), list(start_lines(state, loaded))


def test_nothing_automatic_is_left_and_every_choice_has_a_reason(model: Path) -> None:
    with loaded_engine(model) as loaded:
        config, reasons = loaded.config, loaded.reasons
        assert set(reasons) == AUTOMATIC
        assert (config.isa, config.threads, config.kv, config.max_model_len) == (selected_isa(), 2, "bf16", 512)
        assert parse_size(config.memory or "") == loaded.memory.budget_bytes == int(0.8 * 2 * GIB)
        assert reasons["isa"].endswith(", ".join(available_isas()))
        assert reasons["memory"] == "80 % of 2.00 GiB free by /sys/fs/cgroup/job/memory.max"
        assert reasons["max_model_len"] == "all positions that the model has"
        assert reasons["chunk"].startswith("at most 512 prompt tokens of a request in a step while nothing decodes; ")
        body, lines = shown(loaded)
    assert body["reasons"] == reasons
    assert body["engine"]["isa"] == selected_isa()
    assert (body["engine"]["chunk"], body["engine"]["memory"]) == ("auto", str(int(0.8 * 2 * GIB)))
    assert None not in body["engine"].values()
    assert (body["sampling_defaults"]["temperature"], body["sampling_defaults"]["top_k"]) == (0.5, 40)
    for name, reason in reasons.items():
        assert any(line.split()[0] == name and line.endswith(reason) for line in lines), name


def test_fr_063_quota_set_and_chosen_threads_are_said_at_start(model: Path) -> None:
    with loaded_engine(model) as loaded:
        line = next(line for line in shown(loaded)[1] if line.startswith("threads"))
    assert line.split(maxsplit=1)[1] == "2: CPU set 8, cgroup quota 2.5, chosen 2"


def test_what_was_given_is_called_given(model: Path) -> None:
    given = {"isa": "scalar", "threads": 1, "memory": "100MB", "max_model_len": 64, "chunk": 0, "kv": "int8"}
    with loaded_engine(model, **given) as loaded:
        assert loaded.config == EngineConfig(**given | {"memory": "100000000"})  # type: ignore[arg-type]
        assert all("given" in reason for reason in loaded.reasons.values()), loaded.reasons
        assert loaded.reasons["threads"] == "CPU set 8, cgroup quota 2.5, chosen 1 (given)"
        assert shown(loaded)[0]["engine"]["chunk"] == 0


def test_the_variable_of_the_instruction_set_is_a_reason(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_ISA", "scalar")
    with loaded_engine(model) as loaded:
        assert (loaded.config.isa, loaded.reasons["isa"]) == ("scalar", "given by HASTEN_ISA")


def test_a_context_that_memory_cuts_says_so(model: Path) -> None:
    with loaded_engine(model) as roomy:
        least = roomy.memory.weight_bytes + roomy.memory.scratch_bytes
    model_with_more = write_toy_gguf(model.parent / "long.gguf", overrides={"llama.context_length": 100_000})
    with loaded_engine(model_with_more, memory=str(least + (8 << 20))) as loaded:
        assert loaded.config.max_model_len == loaded.memory.max_model_len < 100_000
        reason = f"what fits: the model has 100000 positions, {size(loaded.memory.kv_bytes)} are left for KV"
        assert loaded.reasons["max_model_len"] == reason


def test_the_reference_executor_says_what_it_does_not_use(model: Path) -> None:
    with loaded_engine(model, executor="reference") as loaded:
        assert loaded.config.kv == "f32"
        assert set(loaded.reasons) == AUTOMATIC
        assert "not used" in loaded.reasons["threads"]
