"""Where the time of one request goes: spans without gap or overlap, from arrival to the last token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hasten.request import Ledger, LedgerPart

QUEUE, PREFILL, DECODE, PREEMPTED, HELD = "queue", "prefill", "decode", "preempted", "held"


class Timeline:
    """Records one request's spans while it lives. Times are seconds of time.monotonic().

    `queue` lasts from arrival to the start of the step that first computes something of it; `prefill` to the end of the
    step that draws a token; `decode` from there on; `preempted` while its blocks are gone, then `prefill` again for what is
    computed once more. `held` (static batching only) is the wait for the rest of the batch.
    """

    __slots__ = ("_arrival_s", "_chunks", "_name", "_parts", "_shared_steps", "_start_s", "_tokens")

    def __init__(self, arrival_s: float) -> None:
        self._arrival_s = arrival_s
        self._parts: list[LedgerPart] = []
        self._open(QUEUE, arrival_s)

    @property
    def name(self) -> str:
        """The span that is open."""
        return self._name

    def enter(self, name: str, now_s: float) -> None:
        """Close the open span at `now_s` and open the next there; nothing if it has that name already."""
        if name != self._name:
            self._close(now_s)
            self._open(name, max(now_s, self._start_s))

    def add_chunk(self, num_tokens: int, *, shared: bool) -> None:
        """A chunk of the request was computed; `shared`: other requests were in the same step."""
        self._chunks += 1
        self._tokens += num_tokens
        self._shared_steps += shared

    def finish(self, now_s: float) -> tuple[LedgerPart, ...]:
        """Close the open span (an empty one is left out, unless it is the only one); all of them."""
        if not self._parts or self._chunks or now_s > self._start_s:
            self._close(now_s)
        return tuple(self._parts)

    def _open(self, name: str, now_s: float) -> None:
        self._name = name
        self._start_s = now_s
        self._chunks = self._tokens = self._shared_steps = 0

    def _close(self, now_s: float) -> None:
        detail: dict[str, float | int | str] = {}
        if self._chunks:
            # a decode chunk is a step; of a prompt one wants to know both
            detail = {"chunks": self._chunks, "tokens": self._tokens, "shared_steps": self._shared_steps}
        start_ms = (self._start_s - self._arrival_s) * 1e3
        self._parts.append(LedgerPart(self._name, start_ms, max(0.0, now_s - self._start_s) * 1e3, detail))


def split_head(ledger: Ledger, spans: Mapping[str, float]) -> Ledger:
    """A copy whose first part gives up its head to `spans` (name → ms, in order).

    The engine sees all the time before the first step as `queue`; the server knows how much of it went into `parse` and
    `tokenize`. Spans longer than the first part are cut, so that the sum stays what it was.
    """
    if not ledger.parts:
        return ledger
    first, rest = ledger.parts[0], ledger.parts[1:]
    head, used_ms = [], 0.0
    for name, ms in spans.items():
        ms = min(max(ms, 0.0), first.ms - used_ms)
        head.append(LedgerPart(name, first.start_ms + used_ms, ms))
        used_ms += ms
    left = dataclasses.replace(first, start_ms=first.start_ms + used_ms, ms=first.ms - used_ms)
    return dataclasses.replace(ledger, parts=(*head, left, *rest))


def extend(ledger: Ledger, name: str, wall_ms: float, detail: Mapping[str, float | int | str] | None = None) -> Ledger:
    """A copy with one more part (for example `deliver`) from the end of the last to `wall_ms` after arrival."""
    wall_ms = max(wall_ms, ledger.wall_ms)
    part = LedgerPart(name, ledger.wall_ms, wall_ms - ledger.wall_ms, detail or {})
    return dataclasses.replace(ledger, wall_ms=wall_ms, parts=(*ledger.parts, part))
