"""Can the client be believed? What it and the machine did while it measured."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hasten.bench.record import RequestRecord
from hasten.bench.timer import PreciseTimer

_TICK_NS = 10_000_000
MAX_CPU_SHARE = 0.85  # of one core, mean over the run: the loop has one thread, and above this it is always behind
MAX_DRIFT_MS = 10.0  # p99 of actual − intended, and 5 % of the median TTFT where that is more
_MAX_DRIFT_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since boot over all CPUs."""

    busy_s: float
    steal_s: float
    total_s: float


def read_cpu_times(path: Path = Path("/proc/stat")) -> CpuTimes | None:
    """None where there is no /proc/stat."""
    try:
        fields = path.read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    ticks = [int(value) for value in fields[1:9]]  # user nice system idle iowait irq softirq steal
    hertz = os.sysconf("SC_CLK_TCK")
    idle = ticks[3] + ticks[4]
    return CpuTimes((sum(ticks[:7]) - idle) / hertz, ticks[7] / hertz, sum(ticks) / hertz)


class Monitor:
    """Watches loop lag, the client's CPU and the machine while a run lasts: `async with Monitor() as monitor`."""

    def __init__(self) -> None:
        self.lag_ms: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: PreciseTimer | None = None
        self._begin: tuple[int, float, CpuTimes | None] = (0, 0.0, None)
        self.wall_s = 0.0
        self.client_cpu_s = 0.0
        self.cpu_shares: list[float] = []  # of one core, second by second
        self.machine: tuple[CpuTimes, CpuTimes] | None = None

    async def __aenter__(self) -> Monitor:
        self._begin = (time.perf_counter_ns(), time.process_time(), read_cpu_times())
        self._timer = PreciseTimer()
        self._task = asyncio.ensure_future(self._watch(self._timer))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        assert self._timer is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._timer.close()
        begin_ns, begin_cpu, begin_times = self._begin
        self.wall_s = (time.perf_counter_ns() - begin_ns) / 1e9
        self.client_cpu_s = time.process_time() - begin_cpu
        end_times = read_cpu_times()
        if begin_times is not None and end_times is not None:
            self.machine = (begin_times, end_times)

    async def _watch(self, timer: PreciseTimer) -> None:
        when_ns = begin_ns = time.perf_counter_ns()
        begin_cpu_s = time.process_time()
        while True:
            when_ns += _TICK_NS  # also past ticks: each that a blocked loop missed has its own lag
            await timer.wait_until(when_ns)
            now_ns = time.perf_counter_ns()
            self.lag_ms.append((now_ns - when_ns) / 1e6)
            if now_ns - begin_ns >= 1_000_000_000:
                cpu_s = time.process_time()
                self.cpu_shares.append((cpu_s - begin_cpu_s) / (now_ns - begin_ns) * 1e9)
                begin_ns, begin_cpu_s = now_ns, cpu_s

    @property
    def cpu_share(self) -> float:
        return self.client_cpu_s / self.wall_s if self.wall_s else 0.0


def audit(monitor: Monitor, records: Sequence[RequestRecord], *, open_loop: bool) -> dict[str, Any]:
    """Plain values, with `saturated` and `findings` (level, text).

    Saturated means: the numbers describe the client, not the server. That is so when the client used its core up, or when
    it sent much later than planned while it had work of its own. Being kept off the CPU by others is a warning.
    """
    lag = np.asarray(monitor.lag_ms or [0.0])
    sent = [record for record in records if record.ready_ns]
    drift = np.asarray([(record.ready_ns - record.intended_ns) / 1e6 for record in sent] or [0.0])
    ttft = [(record.chunk_ns[0] - record.intended_ns) / 1e6 for record in records if record.ok and record.chunk_ns]
    drift_limit = max(MAX_DRIFT_MS, _MAX_DRIFT_SHARE * float(np.median(ttft))) if ttft else MAX_DRIFT_MS
    out: dict[str, Any] = {
        "wall_s": monitor.wall_s,
        "client_cpu_share": monitor.cpu_share,
        "client_cpu_share_max": max([monitor.cpu_share, *monitor.cpu_shares]),
        "busy_s": sum(share > MAX_CPU_SHARE for share in monitor.cpu_shares),
        "loop_lag_ms": _spread(lag),
        "drift_ms": _spread(drift),
        "drift_limit_ms": drift_limit,
        "num_cpus": os.cpu_count() or 1,
        **_machine(monitor),
    }
    findings, saturated = _judge(out, open_loop)
    out["saturated"] = saturated
    out["findings"] = findings
    return out


def _spread(values: Any) -> dict[str, float]:
    return {"p50": float(np.quantile(values, 0.5)), "p99": float(np.quantile(values, 0.99)), "max": float(values.max())}


def _machine(monitor: Monitor) -> dict[str, float | None]:
    if monitor.machine is None:
        return {"steal_share": None, "others_cpus": None}
    before, after = monitor.machine
    total_s = max(1e-9, after.total_s - before.total_s)
    others_s = after.busy_s - before.busy_s - monitor.client_cpu_s
    return {
        "steal_share": (after.steal_s - before.steal_s) / total_s,
        "others_cpus": max(0.0, others_s) / max(1e-9, monitor.wall_s),  # a server on this machine is among them
    }


def _judge(facts: dict[str, Any], open_loop: bool) -> tuple[list[dict[str, str]], bool]:
    findings: list[dict[str, str]] = []
    cpu, lag, drift = facts["client_cpu_share"], facts["loop_lag_ms"]["p99"], facts["drift_ms"]["p99"]
    late = open_loop and drift > facts["drift_limit_ms"]
    saturated = cpu > MAX_CPU_SHARE or (late and cpu > MAX_CPU_SHARE / 2)
    if saturated:
        text = (
            f"the client is saturated: it used {cpu:.0%} of a core (limit {MAX_CPU_SHARE:.0%}), sent {drift:.1f} ms late "
            f"at p99 (limit {facts['drift_limit_ms']:.1f} ms), and its loop lagged {lag:.1f} ms at p99. The figures describe "
            "the client. Use a lower rate or fewer connections, or run several clients on machines of their own"
        )
        findings.append({"level": "error", "text": text})
    elif late or lag > MAX_DRIFT_MS:
        # with little work of its own it was waiting for a core; with much it may have been its own work
        who = "kept off the CPU by others" if cpu < MAX_CPU_SHARE / 2 else "behind, by its own work or others'"
        text = (
            f"the client was {who}: loop lag {lag:.1f} ms, send drift {drift:.1f} ms at p99, while it used {cpu:.0%} of a "
            f"core. Differences below {lag:.1f} ms are not resolved"
        )
        findings.append({"level": "warning", "text": text})
    if facts["busy_s"] and not saturated:
        text = (
            f"for {facts['busy_s']} of {facts['wall_s']:.0f} seconds the client used more than {MAX_CPU_SHARE:.0%} of a core "
            f"(at most {facts['client_cpu_share_max']:.0%}): what was measured then describes the client"
        )
        findings.append({"level": "warning", "text": text})
    steal = facts["steal_share"]
    if steal is not None and steal > 0.02:
        text = f"the hypervisor took {steal:.1%} of this machine's CPU time (steal) during the run"
        findings.append({"level": "warning", "text": text})
    others, num_cpus = facts["others_cpus"], facts["num_cpus"]
    if others is not None and others > 0.5 * num_cpus:
        text = f"other processes used {others:.1f} of {num_cpus} CPUs (a server on this machine is among them)"
        findings.append({"level": "info", "text": text})
    return findings, saturated
