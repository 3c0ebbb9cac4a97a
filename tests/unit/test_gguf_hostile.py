"""GGUF files that are cut off, lie or are something else: a clear error, in no time, without memory."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from hasten.errors import BadFile, ModelError, Unsupported
from hasten.models.spec import RopeSpec
from hasten.weights import open_checkpoint
from hasten.weights.gguf import GgufFile
from tests.support.toy_gguf import toy_spec, write_toy_gguf

U32, F32, STRING, ARRAY = 4, 6, 8, 9


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, value_type: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", value_type) + payload


def tensor(name: str, dims: tuple[int, ...] = (4,), type_number: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_number, offset)


@dataclass
class Header:
    """A file by its bytes; counts are right unless they are set."""

    keys: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    num_keys: int | None = None
    num_tensors: int | None = None
    data: bytes = bytes(4096)
    alignment: int = 32

    def bytes(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        start = self.magic + self.version + struct.pack("<QQ", num_tensors, num_keys)
        start += b"".join(self.keys) + b"".join(self.tensors)
        return start + bytes(-len(start) % self.alignment) + self.data


ONE = struct.pack("<I", 1)
GOOD = Header([key("general.architecture", STRING, text("llama"))], [tensor("a"), tensor("b", (32, 2), 8, 32)])


def test_the_builder_makes_good_files(tmp_path):
    path = tmp_path / "good.gguf"
    path.write_bytes(GOOD.bytes())
    file = GgufFile(path)
    assert file.tensors["b"].shape == (2, 32)
    assert file.data("b").shape == (2, 34)


def _array(element_type: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", element_type, count) + payload


HOSTILE: dict[str, tuple[bytes, type[ModelError], str]] = {
    # what it is
    "nothing": (b"", BadFile, "the file is empty"),
    "another file": (b"PK\3\4 zip", BadFile, r"starts with b'PK\\x03\\x04', a GGUF file starts with b'GGUF'"),
    "LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
        BadFile,
        "is a Git LFS pointer of 63 bytes",
    ),
    "older format": (b"tjgg" + bytes(30), Unsupported, "older than GGUF"),
    "big-endian magic": (b"FUGG" + bytes(30), Unsupported, "big-endian"),
    "big-endian version": (b"GGUF" + struct.pack(">I", 3) + bytes(20), Unsupported, "big-endian"),
    "version 1": (b"GGUF" + struct.pack("<I", 1) + bytes(20), Unsupported, "version 1, hasten reads versions 2 and 3"),
    "version 4": (b"GGUF" + struct.pack("<I", 4) + bytes(20), Unsupported, "version 4"),
    "version 0": (b"GGUF" + bytes(24), Unsupported, "version 0"),
    "magic alone": (b"GGUF", BadFile, "version needs 4 bytes, 0 are left"),
    "no counts": (b"GGUF" + struct.pack("<I", 3) + bytes(6), BadFile, "tensor count needs 8 bytes, 6 are left"),
    # counts
    "key count": (Header(num_keys=2**63).bytes(), BadFile, f"key count is {2**63}, at most"),
    "tensor count": (Header(num_tensors=2**64 - 1).bytes(), BadFile, f"tensor count is {2**64 - 1}, at most"),
    "one key too many": (
        Header([key("k", U32, ONE)], num_keys=2, data=b"", alignment=1).bytes(),
        BadFile,
        "length of name of key 1 needs 8",
    ),
    # keys
    "empty key": (Header([key("", U32, ONE)]).bytes(), BadFile, "key 0 has an empty name"),
    "duplicate key": (Header([key("k", U32, ONE)] * 2).bytes(), BadFile, "key 'k' occurs twice"),
    "key length 2^40": (
        Header([struct.pack("<Q", 2**40)]).bytes(),
        BadFile,
        f"name of key 0 has length {2**40}, at most 65535",
    ),
    "key length 2^64-1": (Header([b"\xff" * 8]).bytes(), BadFile, f"length {2**64 - 1}"),
    "key past the end": (Header([struct.pack("<Q", 60000)]).bytes(), BadFile, "name of key 0 needs 60000 bytes, 4096 are left"),
    "key not UTF-8": (Header([text(b"\xff\xfe") + struct.pack("<I", 4) + ONE]).bytes(), BadFile, "name of key 0 is not UTF-8"),
    "value type": (Header([key("k", 13, ONE)]).bytes(), BadFile, "key 'k' has value type 13"),
    "string past the end": (
        Header([key("k", STRING, struct.pack("<Q", 2**40))]).bytes(),
        BadFile,
        f"key 'k' needs {2**40} bytes",
    ),
    "bool of 2": (Header([key("k", 7, b"\2")]).bytes(), BadFile, "key 'k' is a bool stored as 2"),
    # arrays
    "array length": (
        Header([key("k", ARRAY, _array(F32, 2**62))]).bytes(),
        BadFile,
        f"key 'k' .{2**62} × 4 bytes. needs {2**64} bytes",
    ),
    "string array length": (Header([key("k", ARRAY, _array(STRING, 2**61))]).bytes(), BadFile, f"key 'k' .{2**61} strings"),
    "string array past the end": (
        Header([key("k", ARRAY, _array(STRING, 2, text("a") + struct.pack("<Q", 2**63)))]).bytes(),
        BadFile,
        "key 'k' has 2 strings that reach past the file's",
    ),
    "long string array past the end": (
        Header([key("k", ARRAY, _array(STRING, 3, text("a" * 300) + struct.pack("<Q", 5000)))]).bytes(),
        BadFile,
        "key 'k' has 3 strings that reach past",
    ),
    "element type": (Header([key("k", ARRAY, _array(77, 1))]).bytes(), BadFile, "key 'k' has element type 77"),
    "nested arrays": (Header([key("k", ARRAY, _array(ARRAY, 1, _array(ARRAY, 1)))]).bytes(), Unsupported, "array of arrays"),
    # alignment
    "alignment 0": (Header([key("general.alignment", U32, bytes(4))]).bytes(), BadFile, "'general.alignment' is 0"),
    "alignment 48": (
        Header([key("general.alignment", U32, struct.pack("<I", 48))]).bytes(),
        BadFile,
        "is 48, it must be a power of two",
    ),
    "alignment 2^31": (Header([key("general.alignment", U32, struct.pack("<I", 2**31))]).bytes(), BadFile, f"is {2**31}"),
    "alignment a string": (Header([key("general.alignment", STRING, text("32"))]).bytes(), BadFile, "is '32'"),
    # tensors
    "empty tensor name": (Header(tensors=[tensor("")]).bytes(), BadFile, "tensor 0 has an empty name"),
    "duplicate tensor": (Header(tensors=[tensor("a"), tensor("a", offset=32)]).bytes(), BadFile, "tensor 'a' occurs twice"),
    "no dimensions": (Header(tensors=[tensor("a", ())]).bytes(), BadFile, "tensor 'a' has 0 dimensions"),
    "5 dimensions": (Header(tensors=[tensor("a", (1,) * 5)]).bytes(), BadFile, "tensor 'a' has 5 dimensions"),
    "2^32-1 dimensions": (Header(tensors=[text("a") + b"\xff" * 4]).bytes(), BadFile, f"has {2**32 - 1} dimensions"),
    "zero dimension": (Header(tensors=[tensor("a", (32, 0))]).bytes(), BadFile, r"tensor 'a' has shape \(0, 32\)"),
    "product past 2^64": (Header(tensors=[tensor("a", (2**33, 2**33))]).bytes(), BadFile, f"tensor 'a' of {2**68} bytes"),
    "product of 2^64": (Header(tensors=[tensor("a", (2**32, 2**30))]).bytes(), BadFile, f"tensor 'a' of {2**64} bytes"),
    "half a block": (
        Header(tensors=[tensor("a", (48, 2), 2)]).bytes(),
        BadFile,
        "rows of 48 weights, q4_0 needs a multiple of 32",
    ),
    "type of another kind": (
        Header(tensors=[tensor("a", (256,), 12)]).bytes(),
        Unsupported,
        "'a' has weight type q4_k, hasten reads bf16",
    ),
    "unknown type": (
        Header(tensors=[tensor("a", type_number=250)]).bytes(),
        Unsupported,
        "tensor 'a' has weight type number 250",
    ),
    "misaligned": (
        Header(tensors=[tensor("a", offset=4)]).bytes(),
        BadFile,
        "'a' has offset 4, which is not a multiple of the alignment 32",
    ),
    "offset past the end": (
        Header(tensors=[tensor("a", offset=2**40)]).bytes(),
        BadFile,
        "tensor 'a' of 16 bytes at .* found 41",
    ),
    "offset 2^64-32": (Header(tensors=[tensor("a", offset=2**64 - 32)]).bytes(), BadFile, "tensor 'a' of 16 bytes at"),
    "overlap": (Header(tensors=[tensor("a", (16,)), tensor("b", offset=32)]).bytes(), BadFile, "tensor 'b' at .* overlaps 'a'"),
    "same place": (Header(tensors=[tensor("a"), tensor("b")]).bytes(), BadFile, "overlaps"),
    "no data": (Header(tensors=[tensor("a")], data=b"").bytes(), BadFile, "tensor 'a' of 16 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused_by_name(tmp_path, name):
    content, error, message = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=message) as caught:
        GgufFile(path)
    assert str(caught.value).startswith(str(path))


def test_every_cut_of_a_header_is_refused(tmp_path):
    content = GOOD.bytes()
    path = tmp_path / "cut.gguf"
    needed = len(content) - len(GOOD.data) + 32 + 68
    for length in range(needed):
        path.write_bytes(content[:length])
        with pytest.raises(BadFile):
            GgufFile(path)
    path.write_bytes(content[:needed])
    GgufFile(path)


def test_random_damage_never_escapes_as_another_error(tmp_path):
    """400 files with 1 to 8 random bytes of the header changed: opened, or refused as BadFile or Unsupported."""
    good = write_toy_gguf(tmp_path / "good.gguf", spec=toy_spec(num_layers=1)).read_bytes()
    header_bytes = GgufFile(tmp_path / "good.gguf").header_bytes
    rng = np.random.default_rng(36)
    path = tmp_path / "damaged.gguf"
    refused = 0
    for _ in range(400):
        damaged = bytearray(good)
        for _ in range(rng.integers(1, 9)):
            damaged[rng.integers(0, header_bytes)] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(path)
            _ = checkpoint.tokenizer
        except ModelError:
            refused += 1
    assert 100 < refused < 400


def test_not_a_file(tmp_path):
    with pytest.raises(BadFile, match="is a directory"):
        open_checkpoint(tmp_path)
    with pytest.raises(BadFile, match="no such file"):
        open_checkpoint(tmp_path / "absent.gguf")
    with pytest.raises(BadFile, match="cannot be read"):
        open_checkpoint(Path(os.devnull) / "x")


def test_divisors_beyond_any_head_are_refused_unread(tmp_path, monkeypatch):
    """A sparse file costs nothing: what it holds must not be read before its length is believed."""
    spec = toy_spec(rope=RopeSpec(dim=16, base=1e4, interleaved=False, freq_factors=(1.0,) * 5000))
    path = write_toy_gguf(tmp_path / "toy.gguf", spec=spec)
    monkeypatch.setattr(GgufFile, "data", lambda self, name: pytest.fail(f"{name} was read"))
    with pytest.raises(BadFile, match="5000 divisors"):
        open_checkpoint(path)
