"""Server-sent events out of bytes that arrive in any pieces."""

from __future__ import annotations


class SseParser:
    """Incremental parser; `feed` returns the data of every event that is complete.

    Follows the WHATWG grammar for what matters here: lines end in LF, CRLF or CR; `data` lines of one event are joined by
    LF; comments and other fields are skipped; an event without data is none. Bytes after the last blank line wait.
    """

    __slots__ = ("_buffer", "_data", "_skip_lf")

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []
        self._skip_lf = False

    def feed(self, chunk: bytes) -> list[bytes]:
        # nearly every chunk of a real stream is one event of one data line; going line by line costs eight times as much
        begins = not self._buffer and not self._data and chunk.startswith(b"data: ")
        if begins and chunk.endswith(b"\n\n") and chunk.find(b"\n") == len(chunk) - 2 and b"\r" not in chunk:
            self._skip_lf = False
            return [chunk[6:-2]]
        return self._feed_lines(chunk)

    def _feed_lines(self, chunk: bytes) -> list[bytes]:
        if self._skip_lf and chunk:
            if chunk[:1] == b"\n":  # the LF of a CRLF that was cut between two pieces
                chunk = chunk[1:]
            self._skip_lf = False
        text = self._buffer + chunk
        if text.endswith(b"\r"):
            self._skip_lf = True
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._buffer = text.split(b"\n")
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
                continue
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
        return events

    @property
    def pending(self) -> bool:
        """Bytes of an unfinished event are waiting."""
        return bool(self._buffer or self._data)
