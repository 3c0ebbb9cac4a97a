"""A connection of the fake server: when bytes came, by the kernel's clock; when bytes went, by the clock just before.

An asyncio server stamps a fresh connection's request five turns of its loop too late, half a millisecond and more. The kernel
stamps packets as they arrive (SO_TIMESTAMPNS), also those that come before `accept`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time

SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python 3.11 has no name for it
_TIMESPEC = struct.Struct("qq")


def listen(host: str = "127.0.0.1") -> socket.socket:
    """A listening socket on a free port, whose connections have their packets stamped."""
    listener = socket.socket()
    with contextlib.suppress(OSError):  # where the kernel has no such stamps, ours are taken when the loop sees the bytes
        listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    listener.bind((host, 0))
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def _wall_ahead_ns() -> int:
    """CLOCK_REALTIME − CLOCK_MONOTONIC, by the tightest of three looks."""
    looks = []
    for _ in range(3):
        before, wall, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        looks.append((after - before, wall - (before + after) // 2))
    return min(looks)[1]


class ConnectionClosed(Exception):  # noqa: N818
    """The client went away."""


class StampedSocket:
    """One accepted connection.

    `received_ns`: arrival of the first byte of what is read next (perf_counter_ns), by the clock that `stamped_by` names:
    "kernel", or "loop" where the kernel gives no stamp (gVisor, macOS); then it is late by what the loop took to look.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._unsent = bytearray()
        self._news = asyncio.Event()
        self._closed = False
        self.received_ns = 0
        self.stamped_by = "loop"
        self._loop.add_reader(connection, self._readable)

    def _readable(self) -> None:
        now_ns = time.perf_counter_ns()
        try:
            data, notes, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(_TIMESPEC.size))
        except BlockingIOError:
            return
        except OSError:
            data, notes = b"", []
        if not data:
            self._closed = True
            self._loop.remove_reader(self._socket)
        elif not self._buffer:
            self.received_ns, self.stamped_by = now_ns, "loop"
            for level, kind, payload in notes:
                if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                    seconds, nanoseconds = _TIMESPEC.unpack(payload)
                    self.received_ns = min(now_ns, seconds * 1_000_000_000 + nanoseconds - _wall_ahead_ns())
                    self.stamped_by = "kernel"
        self._buffer += data
        self._news.set()

    async def read_until(self, end: bytes) -> bytes:
        """Raises ConnectionClosed."""
        while (found := self._buffer.find(end)) < 0:
            await self._more()
        return self._take(found + len(end))

    async def read(self, num_bytes: int) -> bytes:
        """Exactly so many. Raises ConnectionClosed."""
        while len(self._buffer) < num_bytes:
            await self._more()
        return self._take(num_bytes)

    async def _more(self) -> None:
        if self._closed:
            raise ConnectionClosed
        self._news.clear()
        await self._news.wait()

    def _take(self, num_bytes: int) -> bytes:
        taken = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return taken

    def write(self, data: bytes) -> int:
        """Send now; what the kernel does not take follows when it can. Returns the time just before."""
        now_ns = time.perf_counter_ns()
        num_sent = 0
        if not self._unsent:
            try:
                num_sent = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError:
                self._closed = True
                return now_ns
        if num_sent < len(data):
            self._unsent += data[num_sent:]
            self._loop.add_writer(self._socket, self._writable)
        return now_ns

    def _writable(self) -> None:
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def close(self, *, reset: bool = False) -> None:
        """End the connection; with `reset` the client gets an RST."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
