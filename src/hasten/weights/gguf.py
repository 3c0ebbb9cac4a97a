"""A memory-mapped reader of GGUF files, versions 2 and 3, that trusts no number in them.

Layout: "GGUF", version, tensor count, key count; keys with typed values; a table of tensors (name, dimensions with the
fastest first, type, offset); padding to `general.alignment`; tensor data. Nothing is allocated by a count in the file:
every length is checked against the bytes that are left, and tensors must lie inside the file without overlapping.
Source: the GGUF specification in the ggml project's documentation.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hasten.errors import BadFile, Unsupported
from hasten.quant import FORMATS
from hasten.weights.gguf_cursor import Cursor, Value

DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20  # real files use 32; a page of the largest kind in use is the most that makes sense
MAX_NAME_BYTES = 65535  # the specification's limit for a key
MAX_DIMS = 4
# a hostile file could turn 15 bytes each into a Python object of a few hundred; real files have below 100 and 10,000
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17

# type numbers of the tensor table that hasten reads, and the names of those it does not, for the error message
TENSOR_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 8: "q8_0", 30: "bf16"}
OTHER_TENSOR_TYPES = {
    6: "q5_0",
    7: "q5_1",
    9: "q8_1",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A row of the tensor table. `shape` is in NumPy order: the last dimension lies together in the file."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    num_bytes: int


class GgufFile:
    """An open GGUF file: metadata and tensor table parsed and checked, tensor data mapped.

    Raises: BadFile when it is damaged, Unsupported when it is of a kind hasten does not read; the message names the key
    or tensor with expected and found size.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._map = _map_file(Path(path))
        try:
            _check_magic(self._map[:24], self.path, len(self._map))
            cursor = Cursor(memoryview(self._map), self.path)
            cursor.position = 4
            self.version = _read_version(cursor, self.path)
            num_tensors = _count(cursor, "tensor", MAX_TENSORS)
            num_keys = _count(cursor, "key", MAX_KEYS)
            self.metadata: Mapping[str, Value] = _read_metadata(cursor, num_keys)
            self.tensors: Mapping[str, TensorInfo] = _read_tensors(cursor, num_tensors, _alignment(cursor, self.metadata))
            self.header_bytes = cursor.position
        except BaseException:
            self.metadata, self.tensors = {}, {}
            self._map = _closed(self._map)
            raise

    def header(self) -> memoryview:
        """The bytes before the tensor data: all that fixes names, shapes, formats and offsets."""
        return memoryview(self._map)[: self.header_bytes]

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """A read-only view of a tensor's bytes, one row for each run of its last dimension."""
        info = self.tensors[name]
        rows = math.prod(info.shape[:-1])
        flat = np.frombuffer(self._map, dtype=np.uint8, count=info.num_bytes, offset=info.offset)
        return flat.reshape(rows, info.num_bytes // rows)

    def close(self) -> None:
        """Let go of the mapping; views that are still in use keep it alive. Idempotent."""
        self.metadata, self.tensors = {}, {}
        self._map = _closed(self._map)


def _closed(mapping: mmap.mmap) -> mmap.mmap:
    """Unmap now if no view is left, else when the last view goes; returns an empty stand-in."""
    with contextlib.suppress(BufferError):
        mapping.close()
    return mmap.mmap(-1, 1)


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise BadFile(f"{path}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise BadFile(f"{path}: no such file") from None
    except IsADirectoryError:
        raise BadFile(f"{path}: is a directory, a GGUF file is needed") from None
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: cannot be read: {error}") from error


def _check_magic(start: bytes, path: str, size: int) -> None:
    if start.startswith(b"version https://git-lfs"):
        raise BadFile(f"{path}: is a Git LFS pointer of {size} bytes, not a model: fetch the file it points to (git lfs pull)")
    if start.startswith(b"FUGG"):
        raise Unsupported(f"{path}: is a big-endian GGUF file, hasten reads little-endian ones")
    if start[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        raise Unsupported(f"{path}: is in a format older than GGUF: convert it to GGUF version 3")
    if start[:4] != b"GGUF":
        raise BadFile(f"{path}: starts with {start[:4]!r}, a GGUF file starts with b'GGUF'")


def _read_version(cursor: Cursor, path: str) -> int:
    version = cursor.u32("version")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0 and version:
        raise Unsupported(f"{path}: is a big-endian GGUF file, hasten reads little-endian ones")
    raise Unsupported(f"{path}: is GGUF version {version}, hasten reads versions 2 and 3")


def _count(cursor: Cursor, what: str, limit: int) -> int:
    count = cursor.u64(f"{what} count")
    if count > limit:
        raise cursor.fail(f"{what} count is {count}, at most {limit} is possible")
    return count


def _read_metadata(cursor: Cursor, num_keys: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for i in range(num_keys):
        key = cursor.string(f"name of key {i}", max_bytes=MAX_NAME_BYTES)
        if not key:
            raise cursor.fail(f"key {i} has an empty name")
        if key in metadata:
            raise cursor.fail(f"key {key!r} occurs twice")
        metadata[key] = cursor.value(key)
    return metadata


def _alignment(cursor: Cursor, metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    is_power = isinstance(value, int) and not isinstance(value, bool) and value > 0 and value & (value - 1) == 0
    if not is_power or not isinstance(value, int) or value > MAX_ALIGNMENT:
        raise cursor.fail(f"key 'general.alignment' is {value!r}, it must be a power of two from 1 to {MAX_ALIGNMENT}")
    return value


def _read_tensors(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for i in range(num_tensors):
        info = _read_tensor(cursor, i, alignment)
        if info.name in tensors:
            raise cursor.fail(f"tensor {info.name!r} occurs twice")
        tensors[info.name] = info
    start = -(-cursor.position // alignment) * alignment
    size = len(cursor.data)
    placed = {
        name: TensorInfo(name, info.format, info.shape, start + info.offset, info.num_bytes) for name, info in tensors.items()
    }
    end, previous = start, ""
    for info in sorted(placed.values(), key=lambda info: info.offset):
        if info.offset + info.num_bytes > size:
            raise cursor.fail(
                f"tensor {info.name!r} of {info.num_bytes} bytes at {info.offset} needs a file of "
                f"{info.offset + info.num_bytes} bytes, found {size}: the file is cut off or its header is damaged"
            )
        if info.offset < end:
            raise cursor.fail(f"tensor {info.name!r} at {info.offset} overlaps {previous!r}, which ends at {end}")
        end, previous = info.offset + info.num_bytes, info.name
    return placed


def _read_tensor(cursor: Cursor, i: int, alignment: int) -> TensorInfo:
    name = cursor.string(f"name of tensor {i}", max_bytes=MAX_NAME_BYTES)
    what = f"tensor {name!r}"
    if not name:
        raise cursor.fail(f"tensor {i} has an empty name")
    num_dims = cursor.u32(f"number of dimensions of {what}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.fail(f"{what} has {num_dims} dimensions, 1 to {MAX_DIMS} are possible")
    shape = tuple(cursor.u64(f"dimension {d} of {what}") for d in range(num_dims))[::-1]
    if 0 in shape:
        raise cursor.fail(f"{what} has shape {shape}: every dimension must be at least 1")
    type_number = cursor.u32(f"type of {what}")
    if type_number not in TENSOR_TYPES:
        found = OTHER_TENSOR_TYPES.get(type_number, f"number {type_number}")
        known = ", ".join(sorted(TENSOR_TYPES.values()))
        raise Unsupported(f"{cursor.label}: {what} has weight type {found}, hasten reads {known}")
    weights = FORMATS[TENSOR_TYPES[type_number]]
    if shape[-1] % weights.block_size:
        raise cursor.fail(f"{what} has rows of {shape[-1]} weights, {weights.name} needs a multiple of {weights.block_size}")
    num_bytes = math.prod(shape) // weights.block_size * weights.block_bytes
    offset = cursor.u64(f"offset of {what}")
    if offset % alignment:
        raise cursor.fail(f"{what} has offset {offset}, which is not a multiple of the alignment {alignment}")
    return TensorInfo(name, weights.name, shape, offset, num_bytes)
