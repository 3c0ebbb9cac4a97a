"""Standard output that cannot take the answer: full, closed, or a pipe whose reader has gone."""

from __future__ import annotations

import contextlib
import io
import os
import sys

from hasten import exit_codes

CLOSED = "standard output is closed: there is nowhere to write the answer"


def say(message: str) -> None:
    """One line on stderr, which may be closed too."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"hasten: {message}", file=sys.stderr, flush=True)


def keep_a_buffer() -> None:
    """Give standard output the buffer back that PYTHONUNBUFFERED takes away: `flush` looks there for what was not written.

    Commands flush wherever somebody waits for a line. What the terminal's encoding does not have (a model writes what it
    likes, and a path need not be UTF-8) is written as an escape: that is no reason to lose the rest of an answer.
    """
    bare = sys.stdout
    if isinstance(bare, io.TextIOWrapper) and isinstance(bare.buffer, io.RawIOBase):
        sys.stdout = open(bare.fileno(), "w", encoding=bare.encoding, errors=bare.errors, closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush(code: int) -> int:
    """Write what is still buffered. Returns `code`, or 1 after one line that says why it cannot be written.

    A write that failed earlier keeps its bytes in the buffer and fails here again: this tells it from other errors of the
    system. A reader that has gone (head, a pager) is told nothing.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        # the interpreter must not try again at exit
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            say(f"cannot write to standard output: {error.strerror or error}")
        return exit_codes.FAILED
    return code
