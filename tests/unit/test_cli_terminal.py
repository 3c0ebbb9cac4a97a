"""Words and lines for people: timing, sizes, progress; and what is left of an answer after Ctrl-C."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import pytest

from hasten.cli.answer import Answer, timing_line
from hasten.cli.generate import _print
from hasten.cli.terminal import ProgressLine, size_text, waiting


def test_timing_line() -> None:
    answer = Answer("hi", "stop", 35.04, 6.14, 312.0, 12, 40)
    assert timing_line(answer) == "TTFT 35.0 ms · TPOT 6.1 ms · 12 prompt + 40 answer tokens · 0.31 s · stop"
    bare = Answer("hi", "length", None, None, 2500.0, None, None)
    assert timing_line(bare) == "2.50 s · length"


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (98_362_432, "93.8 MiB"), (1 << 50, "1024.0 TiB")]
)
def test_size_text(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text


def test_progress_is_silent_on_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(KeyError), ProgressLine("pulling") as progress:
        progress(5, 10)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_a_terminal_is_left_clean_however_the_wait_ends(
    error: type[BaseException] | None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait() -> None:
        with contextlib.suppress(KeyboardInterrupt, ValueError), waiting("loading"):
            if error is not None:
                raise error

    wait()
    assert capfd.readouterr().err == "", "not a terminal"
    monkeypatch.setattr("os.isatty", lambda descriptor: descriptor == 2)
    wait()
    assert capfd.readouterr().err == "loading\r\x1b[K"


@pytest.mark.parametrize(
    ("as_json", "shown"), [(True, '{"model": "m", "text": "one two", "finish_reason": "cancelled"}\n'), (False, "one two\n")]
)
def test_what_there_is_after_ctrl_c(as_json: bool, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    closed = []

    def pieces() -> Generator[str, None, Answer]:
        try:
            yield "one"
            yield " two"
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    assert _print(pieces(), "m", as_json=as_json) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err, closed) == (shown, "", [True])
