"""The table that moves while a run lasts. Only for terminals; the run does not wait for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from hasten.bench.audit import Monitor
from hasten.bench.metrics import SPREAD_FROM, tokens_per_chunk
from hasten.bench.record import RequestRecord
from hasten.bench.request_metrics import request_metrics, token_count
from hasten.bench.runner import LoadRun
from hasten.bench.session import elapsed_s
from hasten.bench.stats import quantile

_RECENT = 200  # requests the moving figures are made of
_REDRAW_S = 0.2


class LiveTable:
    """Call it with the run and the monitor, about once a second, from any thread."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._drawn_s = time.monotonic()
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, run: LoadRun, monitor: Monitor) -> None:
        self._live.update(self.table(run, monitor), refresh=True)

    def making(self, done: int, total: int) -> None:
        """Prompts are being made: counting their tokens may take a while."""
        now_s = time.monotonic()
        if now_s - self._drawn_s > _REDRAW_S:
            self._drawn_s = now_s
            self._live.update(f"{self._title} · making prompts: {done} of {total}", refresh=True)

    def table(self, run: LoadRun, monitor: Monitor) -> Table:
        """The figures of the last requests, and how the client does."""
        ended = [record for record in run.records[-4 * _RECENT :] if record.end_ns][-_RECENT:]
        good = [record for record in ended if record.ok and record.chunk_ns]
        spread = tokens_per_chunk(good) > SPREAD_FROM
        metrics = [request_metrics(record, spread=spread) for record in good]
        ttft = [one.ttft_ms for one in metrics if one.ttft_ms is not None]
        tpot = [one.tpot_ms for one in metrics if one.tpot_ms is not None]
        table = Table(title=f"{self._title} · {elapsed_s(run):.0f} s", title_justify="left")
        for name in ("sent", "in flight", "errors", "TTFT p50", "TTFT p95", "TPOT p50", "tokens/s", "loop lag max"):
            table.add_column(name, justify="right")
        recent_lag = monitor.lag_ms[-100:]
        table.add_row(
            f"{run.num_launched}",
            f"{run.num_in_flight}",
            f"{run.num_errors}",
            _ms(_quantile(ttft, 0.5)),
            _ms(_quantile(ttft, 0.95)),
            _ms(_quantile(tpot, 0.5)),
            f"{_token_rate(good):,.0f}",
            _ms(max(recent_lag, default=None)),
        )
        return table


def _quantile(values: Sequence[float], q: float) -> float | None:
    return quantile(np.asarray(values), q) if values else None


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} ms"


def _token_rate(good: Sequence[RequestRecord]) -> float:
    if len(good) < 2:
        return 0.0
    span_s = (max(record.end_ns for record in good) - min(record.intended_ns for record in good)) / 1e9
    return sum(map(token_count, good)) / max(1e-9, span_s)
