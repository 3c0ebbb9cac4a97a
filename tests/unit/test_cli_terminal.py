"""Words and lines for people: timing, sizes, progress."""

from __future__ import annotations

import contextlib

import pytest

from hasten.cli.answer import Answer, timing_line
from hasten.cli.terminal import ProgressLine, size_text


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
