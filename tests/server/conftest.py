"""One server with made-up answers for all tests that need nothing special."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer, running_server, scripted
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
