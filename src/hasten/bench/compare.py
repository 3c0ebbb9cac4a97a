"""Is B worse than A? A gate for CI that knows what it cannot see.

For each metric the two results' requests are resampled, in blocks of neighbours in time, to get the standard error (SE) of the
relative change. With a wanted resolution t ("5%") the rule is:

    enough samples     5 SE <= t: then t/2 is 2.5 SE away from both 0 and t, and either mistake happens in under 1 run of 100
    worse              change >= t/2, and change >= 2.5 SE
    not worse          enough samples, or change + 2.5 SE < t
    cannot tell        the rest; the message says how many requests each side needs

The interval holds what varies within the two runs. What differs from run to run (another hour, another neighbour) is not in
it: interleave the runs, and compare A with A first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from hasten.bench.stats import QUANTILES, Floats, block_ids, bootstrap, least_count, quantile
from hasten.errors import UsageError

SIGMAS = 2.5
_MAX_FALSE = 0.025  # chance that any of several tests without a gate names a difference that is none
_NUM_DRAWS = 400  # the SE of an SE from 400 draws is 3.5 %
_MARGIN = 1.5  # asked sample sizes come from an SE that is itself an estimate, 10 % from 50 blocks: 22 % is two of its sigmas
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_ms", "itl": "itl_ms", "gap": "chunk_gap_ms"}
_OTHERS = ("output_tokens_per_s", "error_rate", "goodput")
Verdict = Literal["worse", "better", "same", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Gate:
    """One `--fail-if-worse`: a metric and the relative change that must be noticed (error_rate, goodput: an absolute one)."""

    metric: str
    threshold: float


@dataclass(frozen=True, slots=True)
class Change:
    """B against A. `change` is signed so that more is worse; `low` and `high` are `change` ∓ SIGMAS standard errors, or more
    of them where many metrics are tested (`sigmas_for`)."""

    metric: str
    a: float
    b: float
    change: float
    low: float
    high: float
    threshold: float | None
    num_a: int
    num_b: int
    needed: int | None  # requests per side for this threshold
    verdict: Verdict

    @property
    def text(self) -> str:
        """One sentence."""
        kind = "points" if self.metric in ("error_rate", "goodput") else "%"
        span = f"{self.metric}: {self.a:.4g} → {self.b:.4g}, {_side(self.change)} {kind}"
        if math.isfinite(self.low):
            span += f" (between {_side(self.low)} and {_side(self.high)})"
        if self.verdict == "cannot tell" and self.threshold is None:
            return f"{span}: {self.num_a} and {self.num_b} requests do not show how much it varies"
        if self.verdict == "cannot tell":
            limit = (self.threshold or 0) * 100
            have = f"{self.num_a} and {self.num_b} requests"
            return f"{span}: {have} are too few to see {limit:g} {kind}, about {self.needed:,} a side are needed"
        if self.verdict == "same":
            return f"{span}: no difference beyond the noise"
        return f"{span}: {self.verdict} beyond the noise"


def _side(change: float) -> str:
    return f"{'worse' if change > 0 else 'better'} by {abs(change) * 100:.1f}"


def parse_gate(text: str) -> Gate:
    """`ttft_p99:5%`. Raises UsageError naming the metrics."""
    metric, _, limit = text.partition(":")
    known = f"{', '.join(_LATENCIES)} with _mean, _{', _'.join(QUANTILES)}; {', '.join(_OTHERS)}"
    base, _, stat = metric.rpartition("_")
    if metric not in _OTHERS and not (base in _LATENCIES and (stat in QUANTILES or stat == "mean")):
        raise UsageError(f"--fail-if-worse {text!r}: {metric!r} is not known; known: {known}")
    try:
        threshold = float(limit.removesuffix("%")) / 100
    except ValueError:
        threshold = math.nan
    if not limit.endswith("%") or not 0 < threshold < 10:
        raise UsageError(f"--fail-if-worse {text!r}: write METRIC:PERCENT, for example ttft_p99:5%")
    return Gate(metric, threshold)


def sigmas_for(num_tests: int) -> float:
    """Standard errors that a difference must exceed where so many metrics are looked at, and any of them may stand out."""
    return max(SIGMAS, NormalDist().inv_cdf(1 - _MAX_FALSE / num_tests / 2))


def compare(
    a: dict[str, Any], b: dict[str, Any], gate: Gate | None, metric: str | None = None, *, num_tests: int = 1
) -> Change:
    """Test one metric of two results. Without a gate the verdict says only whether there is a difference beyond the noise.

    `num_tests`: how many metrics are tested without a gate; the more, the further off must one be to be named.
    Raises: UsageError when a side has no samples of it.
    """
    name = gate.metric if gate else metric or ""
    value_a, draws_a, num_a = _estimate(a, name, seed=1)
    value_b, draws_b, num_b = _estimate(b, name, seed=2)
    least = _least(name)
    absolute = name in ("error_rate", "goodput")
    sign = -1.0 if name in ("output_tokens_per_s", "goodput") else 1.0
    change = sign * (value_b - value_a if absolute else value_b / value_a - 1)
    spread = draws_b - draws_a if absolute else draws_b / draws_a - 1
    error = float(np.std(spread))
    error = error if math.isfinite(error) else math.inf
    sigmas = SIGMAS if gate else sigmas_for(num_tests)
    low, high = change - sigmas * error, change + sigmas * error
    threshold = gate.threshold if gate else None
    verdict, needed = _judge(change, error, sigmas, threshold, min(num_a, num_b), least)
    return Change(name, value_a, value_b, change, low, high, threshold, num_a, num_b, needed, verdict)


def _judge(
    change: float, error: float, sigmas: float, threshold: float | None, count: int, least: int
) -> tuple[Verdict, int | None]:
    sure = abs(change) >= sigmas * error and error > 0 and count >= least
    if not math.isfinite(error):
        return "cannot tell", None if threshold is None else max(least, 2 * count)
    if threshold is None:
        return (("worse" if change > 0 else "better") if sure else "same"), None
    scale = (2 * SIGMAS * error / threshold) ** 2  # above 1: too few, by that factor
    needed = max(least, math.ceil(count * _MARGIN * scale) if scale > 1 else count)
    if count >= least:
        if change >= threshold / 2 and (sure or error == 0):
            return "worse", needed
        if 2 * SIGMAS * error <= threshold or change + SIGMAS * error < threshold:
            return ("better" if sure and change < 0 else "same"), needed
    return "cannot tell", needed


def _least(name: str) -> int:
    """Requests below which no verdict is given: a bootstrap misjudges a tail it has seen only a handful of values of."""
    if name == "output_tokens_per_s":
        return 100  # 20 slices of the run; fewer say little of how much they vary
    return least_count(QUANTILES.get(name.rpartition("_")[2], 0.0))


def _estimate(result: dict[str, Any], name: str, *, seed: int) -> tuple[float, Floats, int]:
    """The metric, bootstrap draws of it, and the number of requests behind it."""
    if name in ("error_rate", "goodput"):
        return _share(result, "failed" if name == "error_rate" else "met", seed)
    if name == "output_tokens_per_s":
        return _throughput(result, seed)
    base, _, stat = name.rpartition("_")
    key = _LATENCIES[base]
    rows = result["samples"][key]
    blocks = block_ids(len(rows))
    if base in ("itl", "gap"):
        values = np.asarray([value for row in rows for value in row], dtype=np.float64)
        owner = np.repeat(blocks, [len(row) for row in rows]) if rows else blocks
    else:
        kept = [i for i, value in enumerate(rows) if value is not None]
        values = np.asarray([rows[i] for i in kept], dtype=np.float64)
        owner = blocks[kept] if kept else blocks[:0]
    if not len(values):
        raise UsageError(f"{result.get('url', 'a result')} has no samples of {name}")
    point = float(values.mean()) if stat == "mean" else quantile(values, QUANTILES[stat])
    owner = np.unique(owner, return_inverse=True)[1]
    return point, bootstrap(values, owner, [stat], num_draws=_NUM_DRAWS, seed=seed)[stat], len(rows)


def _share(result: dict[str, Any], what: str, seed: int) -> tuple[float, Floats, int]:
    """A share of all requests; errors come in bursts, so blocks of neighbours are drawn here, too."""
    outcomes = result["samples"].get(what)
    if outcomes is None and what == "met":
        raise UsageError("goodput needs targets: run both sides with --ttft-ms, --tpot-ms or --e2e-ms")
    if not outcomes:
        raise UsageError(f"{result.get('url', 'a result')} does not say how each request ended: measure it again")
    values = np.asarray(outcomes, dtype=np.float64)
    total, count = len(values), int(values.sum())
    drawn = bootstrap(values, block_ids(total), ["mean"], num_draws=_NUM_DRAWS, seed=seed)["mean"]
    # one success and one failure more than seen (Agresti and Coull): no error among 100 does not prove a rate of 0
    rare = np.random.default_rng(seed).binomial(total, (count + 1) / (total + 2), size=_NUM_DRAWS) / total
    return count / total, drawn if drawn.std() > rare.std() else rare, total


def _throughput(result: dict[str, Any], seed: int) -> tuple[float, Floats, int]:
    """Tokens per second, with the spread between slices of the run: a request's tokens lie evenly over its decode time."""
    samples = result["samples"]
    starts = np.asarray(samples["start_s"], dtype=np.float64)
    count = len(starts)
    if count < 2:
        raise UsageError("output_tokens_per_s needs at least 2 answers on each side")
    ends = starts + np.asarray(samples["e2e_ms"]) / 1e3
    firsts = starts + np.asarray([ttft if ttft is not None else e2e for ttft, e2e in _pairs(samples)]) / 1e3
    tokens = np.asarray(samples["num_tokens"], dtype=np.float64)
    # from the first start to the last end: where all start together nothing lies between the starts
    edges = np.linspace(starts.min(), ends.max(), min(20, max(2, count // 5)) + 1)
    slices = [_tokens_between(firsts, ends, tokens, low, high) / (high - low) for low, high in pairwise(edges)]
    rates = np.asarray(slices)
    picks = np.random.default_rng(seed).integers(len(rates), size=(_NUM_DRAWS, len(rates)))
    return float(result["throughput"]["output_tokens_per_s"]), _rescaled(rates[picks].mean(axis=1), rates, result), count


def _pairs(samples: dict[str, Any]) -> Sequence[tuple[float | None, float]]:
    return list(zip(samples["ttft_ms"], samples["e2e_ms"], strict=True))


def _tokens_between(firsts: Floats, ends: Floats, tokens: Floats, low: float, high: float) -> float:
    lasts = np.maximum(ends, firsts + 1e-9)
    inside = np.clip(np.minimum(lasts, high) - np.maximum(firsts, low), 0, None) / (lasts - firsts)
    return float((inside * tokens).sum())


def _rescaled(draws: Floats, rates: Floats, result: dict[str, Any]) -> Floats:
    """The slices' relative spread around the reported rate, whose window may be another."""
    middle = float(rates.mean())
    return draws * (result["throughput"]["output_tokens_per_s"] / middle) if middle > 0 else np.full_like(draws, np.nan)


def trustworthy(result: dict[str, Any]) -> str | None:
    """Why a result must not be compared, or None."""
    if result["audit"].get("saturated"):
        return "its client was saturated"
    if not result["requests"]["ok"]:
        return "no request was answered"
    return None


def incomparable(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    """Why two results measure different things, or None: another load, workload or (for goodput) other targets."""
    for name in ("workload", "load", "targets"):
        texts = [_said(result.get(name)) for result in (a, b)]
        if texts[0] != texts[1]:
            return f"their {name} differs: {texts[0]} against {texts[1]}"
    return None


def _said(value: Any) -> Any:
    """A load's text, and a workload's without its seed: other prompts of the same kind are comparable."""
    text = value.get("text", value) if isinstance(value, dict) else value
    return re.sub(r", seed -?\d+", "", text) if isinstance(text, str) else text
