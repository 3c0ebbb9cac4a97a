"""From raw records to metrics. Pure: the same JSONL gives the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hasten.bench.record import RequestRecord
from hasten.bench.request_metrics import RequestMetrics, Targets, request_metrics, spread_tokens, token_count
from hasten.bench.stats import block_ids, describe

# Above this many tokens a chunk, gaps between chunks are not gaps between tokens. Below it the excess is end tokens and
# tokens that hold half a character.
SPREAD_FROM = 1.2
PER_REQUEST = ("ttft_ms", "tpot_ms", "e2e_ms", "ttft_from_send_ms", "send_wait_ms")
PER_TOKEN = ("itl_ms", "chunk_gap_ms")


@dataclass(frozen=True, slots=True)
class Window:
    """The measured part of a run, perf_counter_ns. `end_ns` 0: until the last measured answer."""

    start_ns: int
    end_ns: int = 0


def summarize(records: Sequence[RequestRecord], targets: Targets, window: Window | None = None) -> dict[str, Any]:
    """Everything a result says about the requests, as plain values; warm-up requests count only as traffic."""
    measured = sorted((r for r in records if r.phase == "measured"), key=lambda record: record.intended_ns)
    answered = [record for record in measured if record.ok]
    ratio = tokens_per_chunk(answered)
    spread = ratio > SPREAD_FROM
    metrics = [request_metrics(record, spread=spread) for record in answered]
    throughput = _throughput(measured, records, metrics, spread, window)
    return {
        "requests": _requests(measured, records),
        "latency": _latency(metrics),
        "throughput": throughput,
        "goodput": _goodput(answered, metrics, len(_judged(measured)), targets, throughput["duration_s"], window),
        "tokens": _tokens(answered, ratio, spread),
        "samples": {**_samples(answered, metrics), **_outcomes(measured, metrics, targets)},
    }


def tokens_per_chunk(records: Sequence[RequestRecord]) -> float:
    """Over all answers with text; 1.0 where none has any."""
    pairs = [(token_count(record), len(record.chunk_ns)) for record in records if record.ok and record.chunk_ns]
    num_chunks = sum(chunks for _, chunks in pairs)
    return sum(tokens for tokens, _ in pairs) / num_chunks if num_chunks else 1.0


def _judged(measured: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Requests whose end is the server's doing."""
    return [record for record in measured if record.error != "interrupted"]


def _requests(measured: Sequence[RequestRecord], records: Sequence[RequestRecord]) -> dict[str, Any]:
    errors: dict[str, dict[str, Any]] = {}
    for record in measured:
        if record.error is not None and record.error != "interrupted":
            entry = errors.setdefault(record.error, {"count": 0, "example": record.error_detail})
            entry["count"] += 1
    num_judged = len(_judged(measured))
    num_errors = sum(entry["count"] for entry in errors.values())
    return {
        "measured": len(measured),
        "ok": sum(record.ok for record in measured),
        "errors": num_errors,
        "error_rate": num_errors / num_judged if num_judged else 0.0,
        "by_error": errors,
        "interrupted": len(measured) - num_judged,
        "warmup": len(records) - len(measured),
        "without_text": sum(record.ok and not record.chunk_ns for record in measured),
        "retried": sum(record.retried for record in measured),
    }


def _latency(metrics: Sequence[RequestMetrics]) -> dict[str, Any]:
    blocks = block_ids(len(metrics))
    out: dict[str, Any] = {}
    for name in PER_REQUEST:
        values = [getattr(one, name) for one in metrics]
        kept = [i for i, value in enumerate(values) if value is not None]
        out[name] = describe(np.asarray([values[i] for i in kept], dtype=np.float64), _dense(blocks[kept]))
    for name in PER_TOKEN:
        lists = [getattr(one, name) for one in metrics]
        flat = np.asarray([value for values in lists for value in values], dtype=np.float64)
        owner = np.repeat(blocks, [len(values) for values in lists])
        out[name] = describe(flat, _dense(owner))
    return out


def _dense(blocks: Any) -> Any:
    """Block numbers without holes: a block may have no value at all."""
    return np.unique(blocks, return_inverse=True)[1] if len(blocks) else blocks


def _throughput(
    measured: Sequence[RequestRecord],
    records: Sequence[RequestRecord],
    metrics: Sequence[RequestMetrics],
    spread: bool,
    window: Window | None,
) -> dict[str, Any]:
    answered = [record for record in measured if record.ok]
    if not answered:
        return {"duration_s": 0.0, "paid_s": 0.0, "output_tokens_per_s": 0.0, "input_tokens_per_s": 0.0, "requests_per_s": 0.0}
    start_ns = window.start_ns if window else measured[0].intended_ns
    last_ns = max(record.finish_ns or record.end_ns for record in answered)
    end_ns = window.end_ns if window and window.end_ns else last_ns
    duration_s = max(1e-9, (end_ns - start_ns) / 1e9)
    output = _tokens_inside([record for record in records if record.ok], start_ns, end_ns, spread)
    ended = [record for record in records if record.ok and start_ns <= (record.finish_ns or record.end_ns) <= end_ns]
    launches = [record.intended_ns for record in measured]
    span_s = (launches[-1] - launches[0]) / 1e9
    return {
        "duration_s": duration_s,
        "paid_s": (last_ns - measured[0].intended_ns) / 1e9,  # from the first measured request to the last answer
        "window": "until launching stopped" if window and window.end_ns else "until the last answer",
        "output_tokens_per_s": output / duration_s,
        "input_tokens_per_s": sum(record.prompt_tokens or 0 for record in ended) / duration_s,
        "requests_per_s": len(ended) / duration_s,
        "offered_per_s": (len(launches) - 1) / span_s if span_s > 0 else None,
    }


def _tokens_inside(records: Sequence[RequestRecord], start_ns: int, end_ns: int, spread: bool) -> float:
    """Tokens whose chunk arrived in the window; where text and usage differ, each answer is scaled to its own total."""
    total = 0.0
    for record in records:
        counts = spread_tokens(record) if spread else [1] * len(record.chunk_ns)
        inside = sum(count for at, count in zip(record.chunk_ns, counts, strict=True) if start_ns <= at <= end_ns)
        total += inside * token_count(record) / max(1, sum(counts))
    return total


def _goodput(
    answered: Sequence[RequestRecord],
    metrics: Sequence[RequestMetrics],
    num_judged: int,
    targets: Targets,
    duration_s: float,
    window: Window | None,
) -> dict[str, Any] | None:
    """The share is that of all requests; the rate is over the same window as the throughput, or they could not be compared."""
    if not targets.any:
        return None
    good = [one.meets(targets) for one in metrics]
    until_ns = window.end_ns if window and window.end_ns else None
    inside = sum(
        ok and (until_ns is None or (record.finish_ns or record.end_ns) <= until_ns)
        for record, ok in zip(answered, good, strict=True)
    )
    return {
        "targets": {name: getattr(targets, name) for name in ("ttft_ms", "tpot_ms", "e2e_ms") if getattr(targets, name)},
        "share": sum(good) / num_judged if num_judged else 0.0,
        "requests_per_s": inside / duration_s if duration_s > 0 else 0.0,
        "output_tokens": sum(one.num_tokens for one, ok in zip(metrics, good, strict=True) if ok),
        "input_tokens": sum(r.prompt_tokens or 0 for r, ok in zip(answered, good, strict=True) if ok),
    }


def _tokens(answered: Sequence[RequestRecord], ratio: float, spread: bool) -> dict[str, Any]:
    with_usage = sum(record.completion_tokens is not None for record in answered)
    counted = sum(record.completion_tokens is None and record.counted_tokens is not None for record in answered)
    source = "usage" if with_usage == len(answered) else "tokenizer" if with_usage + counted == len(answered) else "chunks"
    exact = all(len(record.chunk_tokens) == len(record.chunk_ns) for record in answered)
    asked = [(r.asked_prompt_tokens, r.prompt_tokens) for r in answered if r.asked_prompt_tokens and r.prompt_tokens]
    wanted = [record for record in answered if record.max_tokens]
    return {
        "input": sum(record.prompt_tokens or 0 for record in answered),
        "cached": sum(record.cached_tokens or 0 for record in answered),
        "output": sum(token_count(record) for record in answered),
        "source": source,
        "per_chunk": ratio,
        "gaps": ("counted in every chunk" if exact else "spread by text length") if spread else "one token a chunk",
        "prompts_off_length": sum(want != got for want, got in asked),
        "prompts_checked": len(asked),
        "answers_short_of_max": sum(token_count(record) < (record.max_tokens or 0) for record in wanted),
    }


def _samples(answered: Sequence[RequestRecord], metrics: Sequence[RequestMetrics]) -> dict[str, Any]:
    """Per answered request, in order of intended time: what `compare` tests. Gaps of every k-th request if there are many."""
    start_ns = answered[0].intended_ns if answered else 0
    every = 1 + sum(len(one.itl_ms) for one in metrics) // 200_000
    return {
        "start_s": [round((record.intended_ns - start_ns) / 1e9, 6) for record in answered],
        "num_tokens": [one.num_tokens for one in metrics],
        **{name: [_rounded(getattr(one, name)) for one in metrics] for name in PER_REQUEST},
        "itl_every": every,
        **{name: [[_rounded(v) for v in getattr(one, name)] for one in metrics[::every]] for name in PER_TOKEN},
    }


def _outcomes(measured: Sequence[RequestRecord], metrics: Sequence[RequestMetrics], targets: Targets) -> dict[str, Any]:
    """Per request that the server ended, in order of intended time, 0 or 1: an error; all targets met."""
    meets = iter([one.meets(targets) for one in metrics])
    judged = _judged(measured)
    met = [int(next(meets)) if record.ok else 0 for record in judged]
    return {"failed": [int(not record.ok) for record in judged], "met": met if targets.any else None}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
