"""Lengths of prompts and answers: one number, or a stated spread."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from hasten.errors import UsageError

_FORMS = "N, uniform:LOW:HIGH, normal:MEAN:SD[:MAX], lognormal:MEDIAN:SIGMA[:MAX] or exponential:MEAN[:MAX]"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole numbers of at least 1. `text` is how the user wrote it, and is printed with every result."""

    text: str
    kind: str
    numbers: tuple[float, ...]

    def draw(self, rng: random.Random) -> int:
        a, b, most = (*self.numbers, math.inf, math.inf, math.inf)[:3]
        match self.kind:
            case "fixed":
                value = a
            case "uniform":
                return rng.randint(int(a), int(b))
            case "normal":
                value = rng.gauss(a, b)
            case "lognormal":
                value = rng.lognormvariate(math.log(a), b)
            case _:
                value, most = rng.expovariate(1 / a), b
        return max(1, round(min(value, most)))


def parse_lengths(text: str) -> Lengths:
    """Raises UsageError naming the forms."""
    kind, *parts = text.strip().split(":")
    if not parts:
        kind, parts = "fixed", [kind]
    counts = {"fixed": (1, 1), "uniform": (2, 2), "normal": (2, 3), "lognormal": (2, 3), "exponential": (1, 2)}
    try:
        numbers = tuple(float(part) for part in parts)
        low, high = counts[kind]
    except (ValueError, KeyError):
        raise UsageError(f"{text!r} is no length: write {_FORMS}") from None
    if not low <= len(numbers) <= high or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise UsageError(f"{text!r} is no length: write {_FORMS}")
    if numbers[0] < 1 or (kind == "uniform" and numbers[1] < numbers[0]):
        raise UsageError(f"{text!r}: lengths start at 1 and a spread at its lower end; write {_FORMS}")
    return Lengths(text.strip(), kind, numbers)
