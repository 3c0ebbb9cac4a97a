"""What commands write beside their answer: progress and timing, on stderr, for people; and sizes in words."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

REDRAW_S = 0.1


def colour(stream: int = 2) -> bool:
    """Whether escape codes may be written to file descriptor `stream`: a terminal, and NO_COLOR not set (no-color.org)."""
    return os.isatty(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def dim(text: str) -> str:
    """`text` in a quieter colour, where colours may be used on stderr."""
    return f"\x1b[2m{text}\x1b[0m" if colour() else text


def note(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def size_text(num_bytes: int) -> str:
    """1536 → "1.5 KiB"."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """A line on stderr for the length of the block; nothing at all unless stderr is a terminal."""
    shown = os.isatty(2)
    if shown:
        print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class ProgressLine:
    """A line on stderr that counts bytes, redrawn in place; nothing at all unless stderr is a terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = os.isatty(2)
        self._start_s = time.monotonic()
        self._drawn_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._drawn_s:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if not self._shown or now - self._drawn_s < REDRAW_S:
            return
        self._drawn_s = now
        share = f" {100 * done // total:3d} %" if total else ""
        rate = size_text(int(done / max(now - self._start_s, 1e-3)))
        of = f" of {size_text(total)}" if total else ""
        print(f"\r\x1b[K{self._label}{share}  {size_text(done)}{of}  {rate}/s", end="", file=sys.stderr, flush=True)
