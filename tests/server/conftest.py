"""One server with made-up answers for all tests that need nothing special; a model file and an environment for commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import RunningServer, running_server, scripted
from tests.support.toy_gguf import toy_spec, write_toy_gguf
from tests.support.toy_tokenizer import toy


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[RunningServer]:
    # made-up answers keep below the last ids, which are alternatives in logprobs
    words = toy(num_padding=32)
    with running_server(scripted(words, max_model_len=2048, vocab_size=259), words) as running:
        yield running


@pytest.fixture
def server(_shared_server: RunningServer) -> Iterator[RunningServer]:
    """The shared server; after each test it must be idle, with every block free, and alive."""
    yield _shared_server
    _shared_server.wait_idle()
    _shared_server.check_alive()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy with room for a long answer, so that there is something to interrupt."""
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", spec=toy_spec(max_position=8192))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HASTEN_") and name != "NO_COLOR"}
    return environ | {"HASTEN_HOME": str(tmp_path / "home")}
