"""Axes: ranges and round tick values, linear and logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to pixels between `start` and `end` (either may be the larger)."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def pixel(self, value: float) -> float:
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def make_axis(values: Iterable[float], *, start: float, end: float, log: bool, from_zero: bool) -> Axis:
    """An axis that holds all finite `values` (only positive ones when `log`), widened to round ticks."""
    finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    if not finite:
        finite = [1.0]
    low, high = min(finite), max(finite)
    if log:
        ticks = log_ticks(low, high)
        return Axis(ticks[0], ticks[-1], start, end, True, ticks)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    ticks = linear_ticks(low, high)
    return Axis(ticks[0], ticks[-1], start, end, False, ticks)


def linear_ticks(low: float, high: float, wanted: int = 5) -> tuple[float, ...]:
    """About `wanted` round values, 1, 2 or 5 times a power of ten apart, that cover [low, high]."""
    if high <= low:
        pad = abs(low) or 1.0
        low, high = low - pad / 2, high + pad / 2
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(i * step, 12) for i in range(first, max(last, first + 1) + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """1, 2, 5 times powers of ten covering [low, high]; only powers when that would be more than eight ticks."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    every = [m * 10.0**p for p in range(first, last + 1) for m in steps]
    begin = max(i for i, t in enumerate(every) if t <= low * (1 + 1e-9))
    end = min((i for i, t in enumerate(every) if t >= high * (1 - 1e-9)), default=len(every) - 1)
    if end == begin:
        end, begin = min(end + 1, len(every) - 1), max(0, begin - (end + 1 >= len(every)))
    ticks = every[begin : end + 1]
    if len(ticks) > 9:  # many decades: thin evenly, keep the ends
        keep = {round(i * (len(ticks) - 1) / 8) for i in range(9)}
        ticks = [t for i, t in enumerate(ticks) if i in keep]
    return tuple(ticks)


def tick_label(value: float) -> str:
    """ "1.5", "2k", "3M": short enough for an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"
