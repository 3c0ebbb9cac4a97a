"""What a loaded model file offers, whatever its kind: a spec, raw tensors, a tokenizer description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hasten.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the file stores it.

    `data` is a read-only view of the file's bytes (memory map): [rows, bytes per row] uint8 for matrices, [1, bytes] for
    vectors. `format` is one of quant.FORMATS ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"). A matrix of shape
    (rows, cols) maps cols inputs to rows outputs.
    """

    name: str
    format: str
    shape: tuple[int, ...]  # (rows, cols) or (n,)
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """What a tokenizer is built from, as read from the file (GGUF names in the comments)."""

    kind: str  # tokenizer.ggml.model: "gpt2"
    pre: str  # tokenizer.ggml.pre: "smollm", "llama-bpe", …
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]  # 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
    merges: tuple[str, ...]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # every end token the file names (eos, eot, eom)
    add_bos: bool
    add_space_prefix: bool
    chat_template: str | None


class Checkpoint(Protocol):
    """A model on disk, opened and checked. Tensors are named as in models/spec.py."""

    @property
    def path(self) -> str: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def tokenizer(self) -> TokenizerData: ...
    @property
    def generation_defaults(self) -> Mapping[str, float | int]:
        """Fields of SamplingParams that the file recommends; empty for most GGUF files."""
        ...

    @property
    def fingerprint(self) -> str:
        """Short hash of what fixes the numbers: keys, tensor table and a sample of every tensor's bytes."""
        ...

    def tensor(self, name: str) -> RawTensor:
        """Raises KeyError for a name the spec does not have."""
        ...

    def close(self) -> None: ...
