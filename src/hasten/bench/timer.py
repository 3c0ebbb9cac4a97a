"""Waking up on time: event loops round timers up to a millisecond, which would be the error of every send time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import os
import time

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = 0o4000
_TFD_CLOEXEC = 0o2000000
_TFD_TIMER_ABSTIME = 1


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class PreciseTimer:
    """Absolute waits on `time.perf_counter_ns()` through one Linux timerfd.

    Where there is no timerfd a wait ends by yielding to the loop over the last 2 ms: as exact, but not free.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waits: list[tuple[int, int, asyncio.Future[None]]] = []  # heap: time, tie-breaker, waiter
        self._num_waits = 0
        self._released = False
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        except AttributeError:
            self._fd = -1
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._fire)

    async def wait_until(self, when_ns: int) -> None:
        """Return at `when_ns`; at once if that is past or `release` was called."""
        if self._released or when_ns <= time.perf_counter_ns():
            return
        if self._fd < 0:
            await self._wait_by_yielding(when_ns)
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._num_waits += 1
        heapq.heappush(self._waits, (when_ns, self._num_waits, waiter))
        if self._waits[0][2] is waiter:
            self._arm()
        await waiter

    def release(self) -> None:
        """End every wait now, and let none begin."""
        self._released = True
        while self._waits:
            _end(heapq.heappop(self._waits)[2])

    def close(self) -> None:
        self.release()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _arm(self) -> None:
        when_ns = self._waits[0][0]
        spec = _Itimerspec(0, 0, when_ns // 1_000_000_000, when_ns % 1_000_000_000)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _fire(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        now_ns = time.perf_counter_ns()
        while self._waits and self._waits[0][0] <= now_ns:
            _end(heapq.heappop(self._waits)[2])
        if self._waits:
            self._arm()

    async def _wait_by_yielding(self, when_ns: int) -> None:
        while not self._released and (ahead_ns := when_ns - time.perf_counter_ns()) > 0:
            await asyncio.sleep(min(0.1, ahead_ns / 1e9 - 0.002) if ahead_ns > 3_000_000 else 0)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
