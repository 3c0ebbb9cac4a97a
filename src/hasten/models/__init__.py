"""Architectures, one file each: a spec of the decoder and a map of weight names.

A new architecture is `models/<model_type>.py` with `spec_from_gguf` and `gguf_names`, and its name in MODEL_TYPES.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from hasten.errors import Unsupported
from hasten.models.spec import ModelSpec

MODEL_TYPES = ("llama",)


class Metadata(Protocol):
    """Typed look-up of a model file's keys. Raises BadFile naming the key when it is missing or of another type."""

    def integer(self, key: str, default: int | None = None) -> int: ...
    def number(self, key: str, default: float | None = None) -> float: ...
    def text(self, key: str, default: str | None = None) -> str: ...


class Architecture(Protocol):
    """What a module models/<model_type>.py offers."""

    def spec_from_gguf(
        self, metadata: Metadata, *, vocab_size: int, tied_head: bool, freq_factors: tuple[float, ...]
    ) -> ModelSpec:
        """The decoder that the keys describe. Raises BadFile or Unsupported naming the key."""
        ...

    def gguf_names(self, spec: ModelSpec) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Our tensor name → (name in the file, shape it must have)."""
        ...


def architecture(model_type: str) -> Architecture:
    """The module of a model type. Raises Unsupported naming the known types; an import error inside it is not renamed."""
    if model_type not in MODEL_TYPES:
        raise Unsupported(f"architecture {model_type!r} is not known, hasten has: {', '.join(MODEL_TYPES)}")
    return cast(Architecture, importlib.import_module(f"hasten.models.{model_type}"))
