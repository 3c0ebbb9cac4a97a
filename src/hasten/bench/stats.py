"""Quantiles and their uncertainty. A quantile is a value that was observed (nearest rank), never one in between."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
# Requests near each other in time share the machine's state; whole blocks are drawn so that this shows in the interval.
MAX_BLOCKS = 50
_MAX_WORK = 60_000_000  # values looked at by one bootstrap: about a second
_MAX_ARRAY = 1_000_000  # values held at once


def least_count(q: float) -> int:
    """Requests below which nothing is said of a quantile's uncertainty: a bootstrap misjudges a tail seen a few times only."""
    return max(30, math.ceil(10 / (1 - q) - 1e-9))


def quantile(values: Floats, q: float) -> float:
    """Nearest rank: the smallest value with at least a share q of all values at or below it."""
    return float(np.quantile(values, q, method="inverted_cdf"))


def block_ids(count: int) -> npt.NDArray[np.int64]:
    """Consecutive items in at most MAX_BLOCKS blocks of equal size: [count] int64."""
    return np.arange(count) * min(count, MAX_BLOCKS) // max(count, 1)


def bootstrap(
    values: Floats, blocks: npt.NDArray[np.int64], stats: Sequence[str], *, num_draws: int = 500, seed: int = 0
) -> dict[str, Floats]:
    """Draw blocks with replacement and compute each statistic again.

    Args:
        values: [n], in any order.
        blocks: [n], the block of each value, 0 … number of blocks − 1.
        stats: names of QUANTILES, or "mean".
    Returns: for each name [num_draws] values (fewer draws for very many values, never under 100).
    """
    num_draws = max(100, min(num_draws, _MAX_WORK // max(1, len(values))))
    rng = np.random.default_rng(seed)
    order = np.argsort(values, kind="stable")
    ordered, owner = values[order], blocks[order]
    num_blocks = int(blocks.max()) + 1
    times_drawn = rng.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), size=num_draws)
    out = {name: np.empty(num_draws) for name in stats}
    at_once = max(1, _MAX_ARRAY // len(values))
    for begin in range(0, num_draws, at_once):
        part = slice(begin, min(begin + at_once, num_draws))
        weights = times_drawn[part][:, owner]
        reach = np.cumsum(weights, axis=1)
        total = reach[:, -1]
        for name in stats:
            if name == "mean":
                out[name][part] = weights @ ordered / np.maximum(1, total)
            else:
                rank = (reach < (QUANTILES[name] * (1 - 1e-12) * total)[:, None]).sum(axis=1)
                out[name][part] = ordered[np.minimum(rank, len(ordered) - 1)]
    return out


def describe(values: Floats, blocks: npt.NDArray[np.int64], *, seed: int = 0) -> dict[str, float | int | list[float] | None]:
    """n, mean, p50 … p99 and max, each with its 95 % interval as `NAME_interval` (None where values are too few)."""
    if not len(values):
        return {"n": 0}
    out: dict[str, float | int | list[float] | None] = {"n": len(values), "mean": float(values.mean())}
    draws = bootstrap(values, blocks, ["mean", *QUANTILES], seed=seed) if len(values) > 1 else {}
    if draws:
        out["mean_interval"] = _interval(draws["mean"]) if len(values) >= least_count(0.0) else None
    for name, q in QUANTILES.items():
        out[name] = quantile(values, q)
        out[f"{name}_interval"] = _interval(draws[name]) if len(values) >= least_count(q) else None
    out["max"] = float(values.max())
    return out


def _interval(draws: Floats) -> list[float]:
    return [float(np.quantile(draws, 0.025)), float(np.quantile(draws, 0.975))]
