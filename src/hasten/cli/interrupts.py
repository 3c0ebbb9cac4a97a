"""Ctrl-C beside an event loop that runs in bursts on the main thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from hasten import exit_codes

T = TypeVar("T")


class Interrupts:
    """In its block, Ctrl-C during `run` cancels what runs there, and `run` raises KeyboardInterrupt once the loop has stopped.

    asyncio's own way raises KeyboardInterrupt also where the loop has just begun or is about to end: inside of it, where
    coroutines are lost and generators left running. Outside of `run` Ctrl-C is what it always is. A second one in the
    block ends the process: something does not stop. Does nothing where Ctrl-C is ignored or is somebody else's.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._num_signals = 0
        self._is_running = False
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        self._num_signals = 0
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def run(self, runner: asyncio.Runner, make: Callable[[], Coroutine[Any, Any, T]], *, cancellable: bool = True) -> T:
        """The result of the coroutine that `make` gives, which is not made if Ctrl-C came before.

        Raises: KeyboardInterrupt if it came meanwhile, unless the coroutine is one of those that tidy up.
        """
        before = self._num_signals
        self._is_running = True
        try:
            result = runner.run(self._watched(make) if cancellable else make())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            self._is_running = False
        if cancellable and self._num_signals > before:
            raise KeyboardInterrupt
        return result

    async def _watched(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._task = asyncio.current_task()
        try:
            if self._num_signals:
                raise asyncio.CancelledError
            return await make()
        finally:
            self._task = None

    def _on_signal(self, number: int, frame: object) -> None:
        self._num_signals += 1
        if self._num_signals > 1:
            os._exit(exit_codes.INTERRUPTED)  # what was written is flushed, piece by piece
        if not self._is_running:
            raise KeyboardInterrupt
        if self._task is not None:
            # wakes the loop as well, which sleeps on through a signal whose handler does not raise
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)
