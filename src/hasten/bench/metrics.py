"""From raw records to metrics. Pure: the same JSONL gives the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from hasten.bench.record import RequestRecord
from hasten.bench.stats import block_ids, describe

# Above this many tokens a chunk, gaps between chunks are not gaps between tokens. Below it the excess is end tokens and
# tokens that hold half a character.
SPREAD_FROM = 1.2


@dataclass(frozen=True, slots=True)
class Targets:
    """What a good answer is; None: no such target."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def any(self) -> bool:
        return any(value is not None for value in (self.ttft_ms, self.tpot_ms, self.e2e_ms))


@dataclass(slots=True)
class RequestMetrics:
    """Milliseconds of one answered request, counted from the intended send time. None: no such moment."""

    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float
    ttft_from_send_ms: float | None
    send_wait_ms: float
    num_tokens: int
    itl_ms: list[float] = field(default_factory=list)  # one per token after the first chunk's
    chunk_gap_ms: list[float] = field(default_factory=list)

    def meets(self, targets: Targets) -> bool:
        pairs = (
            ("ttft", self.ttft_ms, targets.ttft_ms),
            ("tpot", self.tpot_ms, targets.tpot_ms),
            ("e2e", self.e2e_ms, targets.e2e_ms),
        )
        # no TPOT: the answer came in one chunk, and nobody waited between its tokens
        return all(limit is None or (value <= limit if value is not None else name == "tpot") for name, value, limit in pairs)


def token_count(record: RequestRecord) -> int:
    """Tokens of the answer: the server's usage, else our own count, else one per chunk."""
    for count in (record.completion_tokens, record.counted_tokens):
        if count is not None:
            return count
    return len(record.chunk_ns)


def tokens_per_chunk(records: Sequence[RequestRecord]) -> float:
    """Over all answers with text; 1.0 where none has any."""
    pairs = [(token_count(record), len(record.chunk_ns)) for record in records if record.ok and record.chunk_ns]
    num_chunks = sum(chunks for _, chunks in pairs)
    return sum(tokens for tokens, _ in pairs) / num_chunks if num_chunks else 1.0


def spread_tokens(record: RequestRecord) -> list[int]:
    """How many tokens each chunk of one answer holds: [number of chunks], each at least 1 where the total allows it.

    Exact where the server counts in every chunk; else the total is shared out by the characters of the chunks.
    """
    num_chunks = len(record.chunk_ns)
    if record.chunk_tokens and len(record.chunk_tokens) == num_chunks:
        counts = np.diff(np.asarray([0, *record.chunk_tokens]))
        return [int(count) for count in np.maximum(counts, 0)]
    extra = token_count(record) - num_chunks
    if extra <= 0:
        return [1] * num_chunks
    shares = np.asarray(record.chunk_chars, dtype=np.float64)
    ends = np.round(np.cumsum(shares) / shares.sum() * extra).astype(int)
    return [1 + int(more) for more in np.diff(np.concatenate(([0], ends)))]


def request_metrics(record: RequestRecord, *, spread: bool) -> RequestMetrics:
    """Metrics of one request that ended well."""
    times = record.chunk_ns
    num_tokens = token_count(record)
    end_ns = record.finish_ns or record.end_ns
    gaps = [(later - earlier) / 1e6 for earlier, later in pairwise(times)]
    counts = spread_tokens(record) if spread else [1] * len(times)
    itl = [gap / count for gap, count in zip(gaps, counts[1:], strict=True) for _ in range(count)]
    after_first = num_tokens - counts[0] if times else 0
    # tokens that came with the first chunk took no time after it, so they are not among those the time is shared by
    tpot = (_last_token_ns(record) - times[0]) / 1e6 / after_first if len(times) > 1 and after_first > 0 else None
    return RequestMetrics(
        ttft_ms=(times[0] - record.intended_ns) / 1e6 if times else None,
        tpot_ms=tpot,
        e2e_ms=(end_ns - record.intended_ns) / 1e6,
        ttft_from_send_ms=(times[0] - record.sent_ns) / 1e6 if times else None,
        send_wait_ms=(record.sent_ns - record.intended_ns) / 1e6,
        num_tokens=num_tokens,
        itl_ms=itl,
        chunk_gap_ms=gaps,
    )


def _last_token_ns(record: RequestRecord) -> int:
    """When the last counted token was there: an end token that the server counts has no text, only a finish reason."""
    counts_the_end = record.finish_reason == "stop" and token_count(record) > len(record.chunk_ns)
    return max(record.chunk_ns[-1], record.finish_ns) if counts_the_end else record.chunk_ns[-1]


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
    return {
        "requests": _requests(measured, records),
        "latency": _latency(metrics),
        "throughput": _throughput(measured, records, metrics, spread, window),
        "goodput": _goodput(metrics, len(_judged(measured)), targets, measured),
        "tokens": _tokens(answered, ratio, spread),
        "samples": _samples(answered, metrics),
    }


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
    metrics: Sequence[RequestMetrics], num_judged: int, targets: Targets, measured: Sequence[RequestRecord]
) -> dict[str, Any] | None:
    if not targets.any:
        return None
    good = [one.meets(targets) for one in metrics]
    answered = [record for record in measured if record.ok]
    span_s = (max((r.finish_ns or r.end_ns for r in answered), default=0) - measured[0].intended_ns) / 1e9 if measured else 0.0
    return {
        "targets": {name: getattr(targets, name) for name in ("ttft_ms", "tpot_ms", "e2e_ms") if getattr(targets, name)},
        "share": sum(good) / num_judged if num_judged else 0.0,
        "requests_per_s": sum(good) / span_s if span_s > 0 else 0.0,
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


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
