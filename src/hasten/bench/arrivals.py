"""When requests are meant to be sent: offsets in seconds from the start, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal, get_args

from hasten.errors import UsageError

Arrivals = Literal["poisson", "constant", "bursts"]


def arrival_offsets(kind: Arrivals, rate: float, *, seed: int, burst_size: int = 8) -> Iterator[float]:
    """Endless ascending offsets with a mean of `rate` requests per second.

    poisson: independent users. constant: one every 1/rate seconds. bursts: `burst_size` at one instant, the instants
    a Poisson process of rate / burst_size.
    Raises: UsageError for a rate that is not positive and finite, or an unknown kind.
    """
    if not 0 < rate < float("inf"):
        raise UsageError(f"the rate is {rate} requests per second, it must be positive")
    if kind not in get_args(Arrivals):
        raise UsageError(f"arrivals {kind!r} are not known; known: {', '.join(get_args(Arrivals))}")
    if burst_size < 1:
        raise UsageError(f"the burst size is {burst_size}, it must be at least 1")
    return _offsets(kind, rate, random.Random(f"arrivals:{seed}"), burst_size)


def _offsets(kind: Arrivals, rate: float, rng: random.Random, burst_size: int) -> Iterator[float]:
    if kind == "constant":
        index = 0
        while True:
            yield index / rate  # a product, not a sum: no drift over an hour
            index += 1
    group = burst_size if kind == "bursts" else 1
    now = 0.0
    while True:
        now += rng.expovariate(rate / group)
        for _ in range(group):
            yield now
