"""Sampling defaults that a model's file recommends: the keys `general.sampling.*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hasten.errors import BadFile, InvalidRequest
from hasten.request import SamplingParams

_PREFIX = "general.sampling."
# by the names that llama.cpp's converters write; xtc, mirostat, the order of samplers and the repetition window have no
# counterpart here and are left alone
_NUMBERS = {"temp": "temperature", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty"}
_INTEGERS = {"top_k": "top_k"}


class _Keys(Protocol):
    def __contains__(self, key: str) -> bool: ...
    def integer(self, key: str) -> int: ...
    def number(self, key: str) -> float: ...


def generation_defaults(keys: _Keys) -> Mapping[str, float | int]:
    """Fields of SamplingParams by name, those that the file sets. Raises BadFile for a value no request could have."""
    values: dict[str, float | int] = {}
    for name, field in (_NUMBERS | _INTEGERS).items():
        key = _PREFIX + name
        if key not in keys:
            continue
        # the file has 32 bits: 0.95 shall not be shown as 0.949999988079071
        values[field] = keys.integer(key) if name in _INTEGERS else float(f"{keys.number(key):.7g}")
        try:
            SamplingParams(**{field: values[field]})  # type: ignore[arg-type]  # checks it
        except InvalidRequest as error:
            raise BadFile(f"key {key!r}: {error}") from None
    return values
