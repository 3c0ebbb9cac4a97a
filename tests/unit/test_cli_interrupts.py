"""Ctrl-C at any moment of an answer: cancelled, nothing lost or left running, and the next answer comes."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hasten.cli.interrupts import Interrupts
from hasten.cli.local import LocalModel
from hasten.config import EngineConfig
from hasten.weights.registry import ResolvedModel
from tests.support.toy_gguf import toy_spec, write_toy_gguf

LONG = {"max_tokens": 7000, "ignore_eos": True}  # nothing but Ctrl-C ends it soon


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalModel]:
    path: Path = write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", spec=toy_spec(max_position=8192))
    local = LocalModel(ResolvedModel(path, "toy", (), "", ""), EngineConfig(executor="reference"))
    yield local
    local.close()


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "it was put back"
    signal.signal(signal.SIGINT, before)


def interrupt_after(seconds: float) -> threading.Timer:
    return threading.Timer(seconds, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))


def read(timer: threading.Timer, pieces: Iterator[str]) -> None:
    timer.start()
    for _piece in pieces:
        pass


def wait_idle(model: LocalModel) -> None:
    """The request is cancelled, which takes a step."""
    deadline = time.monotonic() + 20
    while (stats := model._llm.loaded.engine.snapshot()).num_open:
        assert time.monotonic() < deadline, stats
        time.sleep(0.001)


def test_ctrl_c_at_any_moment(model: LocalModel, recwarn: pytest.WarningsRecorder) -> None:
    """Warnings would be of coroutines that nobody waited for; errors, of a generator that still runs."""
    rng = random.Random(1)
    for _ in range(150):
        pieces = model.complete("hi", LONG)
        timer = interrupt_after(rng.uniform(0.0, 0.012))
        with pytest.raises(KeyboardInterrupt):
            read(timer, pieces)
        timer.join()
        pieces.close()
        wait_idle(model)
    assert model._llm.loaded.engine.snapshot().num_finished["length"] == 0, "none came to its end"
    assert "".join(model.complete("hi", {"max_tokens": 3, "ignore_eos": True, "seed": 1}))
    assert list(recwarn) == []


def test_ctrl_c_while_the_reader_is_busy_is_the_readers(model: LocalModel) -> None:
    pieces = model.complete("hi", LONG)
    next(pieces)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    pieces.close()
    wait_idle(model)


def test_an_ignored_ctrl_c_stays_ignored(model: LocalModel) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pieces = model.complete("hi", {"max_tokens": 5, "ignore_eos": True, "seed": 1})
        text = next(pieces)
        signal.raise_signal(signal.SIGINT)
        assert text + "".join(pieces)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_second_one_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[Any] = []
    monkeypatch.setattr("os._exit", codes.append)
    with Interrupts() as interrupts:
        interrupts._is_running = True
        signal.raise_signal(signal.SIGINT)
        assert codes == []
        signal.raise_signal(signal.SIGINT)
    assert codes == [130]
