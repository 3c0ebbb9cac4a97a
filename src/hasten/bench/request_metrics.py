"""What one answered request's record says: its times, and how its tokens lie in its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from hasten.bench.record import RequestRecord


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
        # no TPOT: the answer came in one chunk, and nobody waited between its tokens; an answer without any token meets nothing
        spared = "tpot" if self.ttft_ms is not None else None
        return all(limit is None or (value <= limit if value is not None else name == spared) for name, value, limit in pairs)


def token_count(record: RequestRecord) -> int:
    """Tokens of the answer: the server's usage, else our own count, else one per chunk."""
    for count in (record.completion_tokens, record.counted_tokens):
        if count is not None:
            return count
    return len(record.chunk_ns)


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
    itl = _token_gaps(gaps, counts[1:])
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


def _token_gaps(gaps: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Each chunk's gap shared out among its tokens; that of a chunk that finishes none is part of the next token's."""
    out: list[float] = []
    carried = 0.0
    for gap, count in zip(gaps, counts, strict=True):
        carried += gap
        out.extend([carried / count] * count if count else ())
        carried = 0.0 if count else carried
    if out:
        out[-1] += carried  # text that came after the last counted token
    return out


def _last_token_ns(record: RequestRecord) -> int:
    """When the last counted token was there: an end token that the server counts has no text, only a finish reason."""
    per_chunk = record.chunk_tokens if len(record.chunk_tokens) == len(record.chunk_ns) else None
    in_chunks = per_chunk[-1] if per_chunk else len(record.chunk_ns)
    counts_the_end = record.finish_reason == "stop" and token_count(record) > in_chunks
    return max(record.chunk_ns[-1], record.finish_ns) if counts_the_end else record.chunk_ns[-1]
