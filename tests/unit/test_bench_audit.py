"""What the client says about itself; waking up on time; the live table; the report."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hasten.bench import audit as audit_module
from hasten.bench.audit import CpuTimes, Monitor, audit, read_cpu_times
from hasten.bench.live import LiveTable
from hasten.bench.record import RequestRecord
from hasten.bench.runner import LoadRun
from hasten.bench.timer import PreciseTimer

MS = 1_000_000


def _monitor(*, cpu: float, lag_ms: float, steal: float = 0.0, others: float = 0.0, wall_s: float = 10.0) -> Monitor:
    monitor = Monitor()
    monitor.lag_ms = [lag_ms] * 100
    monitor.wall_s = wall_s
    monitor.client_cpu_s = cpu * wall_s
    busy = (cpu + others) * wall_s
    monitor.machine = (CpuTimes(100.0, 1.0, 500.0), CpuTimes(100.0 + busy, 1.0 + steal * 20, 520.0))
    return monitor


def _records(drift_ms: float, ttft_ms: float = 50.0) -> list[RequestRecord]:
    ready = int(drift_ms * MS)
    return [RequestRecord(id="r", ready_ns=ready, sent_ns=ready, chunk_ns=[int(ttft_ms * MS)]) for _ in range(50)]


@pytest.mark.parametrize(
    ("cpu", "lag_ms", "drift_ms", "open_loop", "saturated", "levels"),
    [
        (0.1, 0.2, 0.3, True, False, []),
        (0.9, 0.2, 0.3, True, True, ["error"]),
        (0.9, 0.2, 0.3, False, True, ["error"]),
        (0.5, 2.0, 30.0, True, True, ["error"]),  # late with work of its own: cannot keep up
        (0.05, 2.0, 30.0, True, False, ["warning"]),  # late with nothing to do: kept off the CPU
        (0.05, 25.0, 0.0, False, False, ["warning"]),
        (0.5, 2.0, 30.0, False, False, []),  # a closed loop has no times to keep
    ],
)
def test_verdicts(cpu: float, lag_ms: float, drift_ms: float, open_loop: bool, saturated: bool, levels: list[str]) -> None:
    facts = audit(_monitor(cpu=cpu, lag_ms=lag_ms), _records(drift_ms), open_loop=open_loop)
    assert facts["saturated"] is saturated
    assert [finding["level"] for finding in facts["findings"]] == levels
    assert facts["client_cpu_share"] == pytest.approx(cpu)
    assert facts["loop_lag_ms"]["p99"] == lag_ms
    assert facts["drift_ms"]["max"] == drift_ms


@pytest.mark.parametrize(("cpu", "words"), [(0.05, "kept off the CPU by others"), (0.7, "by its own work or others'")])
def test_others_are_blamed_only_where_the_client_had_little_to_do(cpu: float, words: str) -> None:
    facts = audit(_monitor(cpu=cpu, lag_ms=25.0), _records(0.0), open_loop=False)
    assert [finding["level"] for finding in facts["findings"]] == ["warning"]
    assert words in facts["findings"][0]["text"]


def test_a_client_that_is_saturated_for_a_part_of_the_run_says_so() -> None:
    monitor = _monitor(cpu=0.3, lag_ms=0.2)
    monitor.cpu_shares = [0.1] * 7 + [0.97, 0.99, 0.2]
    facts = audit(monitor, _records(0.3), open_loop=True)
    assert not facts["saturated"]
    assert [finding["level"] for finding in facts["findings"]] == ["warning"]
    assert "for 2 of 10 seconds" in facts["findings"][0]["text"]
    assert "99%" in facts["findings"][0]["text"]


def test_the_monitor_counts_cpu_second_by_second() -> None:
    async def main() -> Monitor:
        async with Monitor() as monitor:
            await asyncio.sleep(1.05)
            end_s = time.process_time() + 0.6
            while time.process_time() < end_s:
                pass
            await asyncio.sleep(1.1)
        return monitor

    shares = asyncio.run(main()).cpu_shares
    assert len(shares) >= 2
    assert shares[0] < 0.3
    assert max(shares) > 2 * shares[0]


def test_steal_and_neighbours_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module.os, "cpu_count", lambda: 2)
    facts = audit(_monitor(cpu=0.1, lag_ms=0.1, steal=0.05, others=1.5), _records(0.1), open_loop=True)
    assert facts["steal_share"] == pytest.approx(0.05)
    assert facts["others_cpus"] == pytest.approx(1.5)
    texts = " ".join(finding["text"] for finding in facts["findings"])
    assert "5.0% of this machine's CPU time (steal)" in texts
    assert "1.5 of 2 CPUs" in texts


def test_slow_answers_allow_more_drift() -> None:
    facts = audit(_monitor(cpu=0.5, lag_ms=1.0), _records(30.0, ttft_ms=2000.0), open_loop=True)
    assert facts["drift_limit_ms"] == 100.0
    assert not facts["saturated"]


def test_cpu_times_are_read_by_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module.os, "sysconf", lambda name: 100)
    (tmp_path / "stat").write_text("cpu  100 20 30 400 50 6 7 80 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert read_cpu_times(tmp_path / "stat") == CpuTimes(1.63, 0.8, 6.93)
    assert read_cpu_times(tmp_path / "none") is None


def test_the_monitor_sees_a_blocked_loop() -> None:
    async def main() -> Monitor:
        async with Monitor() as monitor:
            await asyncio.sleep(0.1)
            time.sleep(0.12)
            await asyncio.sleep(0.05)
        return monitor

    monitor = asyncio.run(main())
    assert max(monitor.lag_ms) > 100
    assert monitor.wall_s > 0.25


def test_a_block_counts_as_long_as_it_was() -> None:
    """0.3 s of 1 s: three arrivals in ten would have been stamped late, so it must show far below the maximum."""

    async def main() -> Monitor:
        async with Monitor() as monitor:
            await asyncio.sleep(0.35)
            time.sleep(0.3)
            await asyncio.sleep(0.35)
        return monitor

    lag_ms = sorted(asyncio.run(main()).lag_ms)
    assert lag_ms[int(len(lag_ms) * 0.9)] > 50
    assert len(lag_ms) >= 80


@pytest.mark.parametrize("timerfd", [True, False])
def test_waits_end_in_order_and_never_early(timerfd: bool) -> None:
    async def main() -> list[tuple[int, int]]:
        timer = PreciseTimer()
        if not timerfd:
            timer.close()
            timer._released = False
        begin_ns = time.perf_counter_ns()
        ended: list[tuple[int, int]] = []

        async def wait(ms: int) -> None:
            await timer.wait_until(begin_ns + ms * MS)
            ended.append((ms, time.perf_counter_ns() - begin_ns))

        await asyncio.gather(*(wait(ms) for ms in (40, 10, 30, 0, 20, 10)))
        timer.close()
        return ended

    ended = asyncio.run(main())
    assert sorted(ms for ms, _ in ended) == [ms for ms, _ in ended] == [0, 10, 10, 20, 30, 40]
    assert all(at_ns >= ms * MS for ms, at_ns in ended)


def test_releasing_ends_every_wait() -> None:
    async def main() -> float:
        timer = PreciseTimer()
        begin = time.perf_counter()
        waits = [asyncio.ensure_future(timer.wait_until(time.perf_counter_ns() + 10**11)) for _ in range(3)]
        await asyncio.sleep(0.01)
        timer.release()
        await asyncio.gather(*waits)
        await timer.wait_until(time.perf_counter_ns() + 10**11)
        timer.close()
        return time.perf_counter() - begin

    assert asyncio.run(main()) < 5


def test_the_live_table_shows_the_last_requests() -> None:
    run = LoadRun(num_launched=12, num_in_flight=2, num_errors=5, start_ns=time.perf_counter_ns() - 3 * 10**9)
    for i in range(10):
        sent = i * 100 * MS
        times = [sent + 50 * MS, sent + 70 * MS, sent + 90 * MS]
        run.records.append(RequestRecord(id=str(i), intended_ns=sent, sent_ns=sent, chunk_ns=times, end_ns=times[-1]))
    run.records[3].error = "reset"
    out = io.StringIO()
    Console(file=out, width=120).print(LiveTable("bench").table(run, _monitor(cpu=0.1, lag_ms=1.5)))
    row = next(line for line in out.getvalue().splitlines() if "50.0 ms" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["12", "2", "5", "50.0 ms", "50.0 ms", "20.0 ms", "27", "1.5 ms"]


def test_the_live_table_counts_as_the_result_does() -> None:
    """80 ms between chunks of four tokens: 20 ms a token."""
    run = LoadRun(start_ns=time.perf_counter_ns())
    for i in range(3):
        times = [(100 + 80 * chunk) * MS for chunk in range(15)]
        facts: dict[str, Any] = {"intended_ns": 0, "chunk_ns": times, "chunk_chars": [20] * 15, "completion_tokens": 60}
        run.records.append(RequestRecord(id=str(i), end_ns=times[-1], **facts))
    out = io.StringIO()
    Console(file=out, width=120).print(LiveTable("bench").table(run, _monitor(cpu=0.1, lag_ms=1.5)))
    row = next(line for line in out.getvalue().splitlines() if "100.0 ms" in line)
    assert row.strip("│").split("│")[5].strip() == "20.0 ms"


def test_an_empty_live_table_does_not_fail() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(LiveTable("bench").table(LoadRun(), Monitor()))
    assert "–" in out.getvalue()


def _result(**changes: Any) -> dict[str, Any]:
    from hasten.bench.session import make_result

    records = []
    for i in range(60):
        sent = i * 40 * MS
        times = [sent + (50 + i % 7) * MS, sent + 90 * MS, sent + 130 * MS]
        facts: dict[str, Any] = {"id": str(i), "intended_ns": sent, "ready_ns": sent, "sent_ns": sent, "chunk_ns": times}
        records.append(RequestRecord(**facts, chunk_chars=[4] * 3, finish_ns=times[-1], completion_tokens=12, prompt_tokens=9))
    records[7].error, records[7].error_detail = "http_500", "<script>alert(1)</script>"
    header = {
        "version": "0", "started_at": "t", "url": "http://x", "model": "m", "workload": "plain", "notes": ["a note"],
        "load": {"kind": "open loop", "value": 25.0, "text": "open loop"}, "interrupted": False, "window": None,
        "targets": {"ttft_ms": 60.0, "tpot_ms": None, "e2e_ms": None}, "price_per_hour": 2.0, "currency": "EUR",
        "audit": audit(_monitor(cpu=0.9, lag_ms=2.0), records, open_loop=True), **changes,
    }  # fmt: skip
    return make_result(header, records)


def test_the_report_says_what_a_reader_must_not_miss() -> None:
    from hasten.bench.result_report import result_report
    from hasten.report.markdown import report_markdown

    text = report_markdown(result_report(_result()))
    for words in ("client is saturated", "a note", "Chunks hold 4.0 tokens", "EUR per million tokens", "Noise floor", "http"):
        assert words in text
    assert "59 of 60 requests answered" in text
    assert "prefix cache" not in text
    assert "Interrupted" in report_markdown(result_report(_result(interrupted=True)))


def test_a_server_that_knows_the_prompts_is_said() -> None:
    """Two runs with one seed on a server that keeps prefixes: the second is faster, and not by its own merit."""
    from hasten.bench.result_report import result_report
    from hasten.report.markdown import report_markdown

    result = _result()
    result["tokens"]["cached"] = result["tokens"]["input"] // 2
    assert "came from the server's prefix cache" in report_markdown(result_report(result))
    assert "prefix cache" not in report_markdown(result_report({**result, "workload": "prefix: input 9"}))


@pytest.mark.full
@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_in_a_browser(tmp_path: Path, width: int) -> None:
    from hasten.bench.result_report import result_report
    from hasten.report import write_report
    from tests.support.browser import open_page

    (path,) = write_report(result_report(_result()), tmp_path / "bench.html")
    with open_page(path.as_uri(), width=width) as (page, log):
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        assert "59 of 60 requests answered" in page.inner_text("body")
        assert page.locator("svg").count() >= 4
    assert [url for url in log.requests if url != path.as_uri() and not url.startswith("data:")] == []
    assert log.console_errors == []
