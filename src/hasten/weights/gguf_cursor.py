"""Reading little-endian values from a GGUF header, every length checked against the bytes that are left."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hasten.errors import BadFile, Unsupported

# value types of GGUF metadata: number → (struct code, NumPy type, name); 8 is a string, 9 an array
SCALAR_TYPES = {
    0: ("<B", "u1", "uint8"),
    1: ("<b", "i1", "int8"),
    2: ("<H", "<u2", "uint16"),
    3: ("<h", "<i2", "int16"),
    4: ("<I", "<u4", "uint32"),
    5: ("<i", "<i4", "int32"),
    6: ("<f", "<f4", "float32"),
    7: ("<?", "?", "bool"),
    10: ("<Q", "<u8", "uint64"),
    11: ("<q", "<i8", "int64"),
    12: ("<d", "<f8", "float64"),
}
STRING_TYPE = 8
MAX_QUICK_STRINGS = 1 << 20
ARRAY_TYPE = 9

_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class StringArray:
    """An array of strings left undecoded in the file's mapping: the vocabulary is most of a header."""

    key: str
    buffer: memoryview  # from the first length to the end of the last string
    starts: npt.NDArray[np.int64]  # [count], of the lengths in `buffer`

    def __len__(self) -> int:
        return len(self.starts)

    def decode(self) -> tuple[str, ...]:
        """The strings. Raises BadFile naming the key when one is not UTF-8."""
        if not len(self.starts):
            return ()
        data = bytes(self.buffer)
        ends = [*self.starts[1:].tolist(), len(data)]
        try:
            return _split(data, self.starts) or tuple(
                data[start + 8 : end].decode() for start, end in zip(self.starts.tolist(), ends, strict=True)
            )
        except UnicodeDecodeError as error:
            raise BadFile(f"key {self.key!r}: a string is not UTF-8 ({error.reason})") from None


def _short_starts(data: memoryview, position: int, count: int) -> npt.NDArray[np.int64] | None:
    """Where the lengths of `count` strings are, if all are below 256 bytes: a step is then one byte read.

    None if a string is longer or the walk leaves the data; `_any_starts` says which.
    """
    starts: list[int] = []
    append = starts.append
    try:
        for _ in range(count):
            append(position)
            position += 8 + data[position]
    except IndexError:
        return None
    found = np.array(starts, dtype=np.int64)
    if position > len(data) or any(np.frombuffer(data, dtype=np.uint8)[found + i].any() for i in range(1, 8)):
        return None
    return found


def _any_starts(data: memoryview, position: int, count: int) -> npt.NDArray[np.int64] | None:
    """The same for strings of any length; None if they reach past the end of the data."""
    starts = array("q")  # 8 bytes a string, as in the file: never more than the file's own size
    try:
        for _ in range(count):
            starts.append(position)
            position += 8 + _U64.unpack_from(data, position)[0]
            if position > len(data):
                return None
    except struct.error:
        return None
    return np.frombuffer(starts, dtype=np.int64)


def _split(data: bytes, starts: npt.NDArray[np.int64]) -> tuple[str, ...] | None:
    """All strings by one decode and one split, ten times faster than one by one; None if a string holds a NUL.

    Each 8-byte length becomes one NUL, which then separates the strings.
    """
    text = np.frombuffer(data, dtype=np.uint8).copy()
    keep = np.ones(len(data), dtype=bool)
    for i in range(1, 8):
        keep[starts + i] = False
    text[starts] = 0
    strings = text[keep].tobytes().decode().split("\0")
    # the text starts with a separator: the piece in front of it is empty
    return tuple(strings[1:]) if len(strings) == len(starts) + 1 else None


Value = int | float | bool | str | npt.NDArray[np.generic] | StringArray


class Cursor:
    """A position in the mapped file. Every read names what it reads, so that a cut-off file says what is missing."""

    def __init__(self, data: memoryview, label: str) -> None:
        self.data = data
        self.position = 0
        self.label = label

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def fail(self, message: str) -> BadFile:
        return BadFile(f"{self.label}: {message}")

    def need(self, num_bytes: int, what: str) -> None:
        """Raises BadFile unless `num_bytes` more bytes exist."""
        if num_bytes > self.remaining:
            raise self.fail(
                f"{what} needs {num_bytes} bytes, {self.remaining} are left: the file is cut off or its header is damaged"
            )

    def number(self, value_type: int, what: str) -> int | float | bool:
        code, _, _ = SCALAR_TYPES[value_type]
        size = struct.calcsize(code)
        self.need(size, what)
        if value_type == 7:
            byte = self.data[self.position]
            if byte > 1:
                raise self.fail(f"{what} is a bool stored as {byte}, it must be 0 or 1")
        value: int | float | bool = struct.unpack_from(code, self.data, self.position)[0]
        self.position += size
        return value

    def u32(self, what: str) -> int:
        return int(self.number(4, what))

    def u64(self, what: str) -> int:
        return int(self.number(10, what))

    def string(self, what: str, *, max_bytes: int | None = None) -> str:
        """A length and UTF-8 bytes. With `max_bytes` (names) it must be valid and short; free text is mended."""
        length = self.u64(f"length of {what}")
        if max_bytes is not None and length > max_bytes:
            raise self.fail(f"{what} has length {length}, at most {max_bytes} is possible")
        self.need(length, what)
        raw = bytes(self.data[self.position : self.position + length])
        self.position += length
        try:
            return raw.decode("utf-8", "strict" if max_bytes is not None else "replace")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8: {raw[:40]!r}") from None

    def value(self, key: str) -> Value:
        """A typed metadata value."""
        what = f"key {key!r}"
        value_type = self.u32(f"type of {what}")
        if value_type == STRING_TYPE:
            return self.string(what)
        if value_type == ARRAY_TYPE:
            return self._array(key, what)
        if value_type not in SCALAR_TYPES:
            raise self.fail(f"{what} has value type {value_type}, known are 0 to 12")
        return self.number(value_type, what)

    def _array(self, key: str, what: str) -> Value:
        element_type = self.u32(f"element type of {what}")
        count = self.u64(f"length of {what}")
        if element_type == ARRAY_TYPE:
            raise Unsupported(f"{self.label}: {what} is an array of arrays, hasten reads flat arrays only")
        if element_type == STRING_TYPE:
            return self._string_array(key, what, count)
        if element_type not in SCALAR_TYPES:
            raise self.fail(f"{what} has element type {element_type}, known are 0 to 12")
        dtype = np.dtype(SCALAR_TYPES[element_type][1])
        # bools are read as bytes: a stored 2 would be an invalid NumPy bool
        dtype = np.dtype("u1") if dtype == np.bool_ else dtype
        self.need(count * dtype.itemsize, f"{what} ({count} × {dtype.itemsize} bytes)")
        array = np.frombuffer(self.data, dtype=dtype, count=count, offset=self.position)
        self.position += count * dtype.itemsize
        return array

    def _string_array(self, key: str, what: str, count: int) -> StringArray:
        self.need(count * 8, f"{what} ({count} strings of at least 8 bytes)")
        first = self.position
        # the quick way makes Python integers: only for vocabularies of a size that exists
        starts = _short_starts(self.data, first, count) if count <= MAX_QUICK_STRINGS else None
        if starts is None:
            starts = _any_starts(self.data, first, count)
        if starts is None:
            raise self.fail(
                f"{what} has {count} strings that reach past the file's {len(self.data)} bytes: "
                "it is cut off or its header is damaged"
            )
        if count:
            last = int(starts[-1])
            self.position = last + 8 + int(_U64.unpack_from(self.data, last)[0])
        return StringArray(key, self.data[first : self.position], starts - first)
