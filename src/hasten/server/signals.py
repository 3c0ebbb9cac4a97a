"""Ends that do not wait: SIGTERM while the model loads, and the second signal of a drain."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn


@contextlib.contextmanager
def sigterm_ends_loading() -> Iterator[None]:
    """SIGTERM in the block, before `run` takes over: a line, and exit code 0.

    Without it the process would end by the signal, and as the first of a container not at all: the kernel does not deliver
    to it what it does not handle.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, _stop_loading)
    try:
        yield
    finally:
        if before is not None:  # None: set by something that is not Python, and gone
            signal.signal(signal.SIGTERM, before)


def _stop_loading(number: int, frame: object) -> None:
    # not `print`: the interrupted code may be in the middle of one
    with contextlib.suppress(OSError):
        os.write(2, b"hasten: stopped while loading\n")
    end_at_once(0)


def end_at_once(code: int) -> NoReturn:
    """No thread, stream or buffer can hold this up; there are no child processes and no files half written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
