"""Loads against servers with known timings. The server's own record, on the same clock, is the oracle."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hasten.bench.client import BenchClient, ClientOptions
from hasten.bench.connection import parse_endpoint
from hasten.bench.metrics import summarize
from hasten.bench.record import RequestRecord
from hasten.bench.request_metrics import Targets, request_metrics
from hasten.bench.runner import Limits, Runner
from hasten.bench.session import run_loop
from hasten.bench.trace import Job, TraceRequest, write_trace
from tests.support.fake_server import FakeServer
from tests.support.load_oracle import ms, run, run_right


@pytest.mark.parametrize(
    "scenario",
    [
        {"gap_ms": 10},
        {"gap_ms": 10, "jitter_ms": 15},
        {"gap_ms": 10, "empty_first": True, "role_ms": 3},
        {"gap_ms": 10, "newline": "\r\n"},
        {"gap_ms": 10, "split": 7},
        {"gap_ms": 10, "slow_close_ms": 200},
        {"gap_ms": 10, "done": False, "slow_close_ms": 200},
    ],
    ids=lambda scenario: "-".join(list(scenario)[1:]) or "steady",
)
def test_closed_loop_measures_what_the_server_did(scenario: dict[str, Any]) -> None:
    """Users out of step, and many requests: one moment without a core must not be in one error of ten."""
    outcome = run_right({"tokens": 12, "first_ms": 30, "stagger_ms": 3.7, **scenario}, concurrency=3, requests=45)
    assert outcome.result["requests"]["by_error"] == {}


def test_nobody_waits_for_a_slow_close() -> None:
    with FakeServer(tokens=3, first_ms=10, gap_ms=5, slow_close_ms=1500) as server:
        outcome = run(server.url, requests=4)
    assert all(ms(record.chunk_ns[-1], record.end_ns) < 1000 for record in outcome.records)
    assert all(ms(a.end_ns, b.intended_ns) < 1000 for a, b in itertools.pairwise(outcome.records))


def test_open_loop_keeps_its_times_and_measures_right() -> None:
    outcome = run_right({"tokens": 8, "first_ms": 30, "gap_ms": 10}, rate=30.0, requests=60)
    times = [record.intended_ns for record in outcome.records]
    assert times == sorted(times)
    drift = [ms(record.intended_ns, record.ready_ns) for record in outcome.records]
    assert min(drift) >= 0
    assert statistics.median(drift) < 1.0 + outcome.result["audit"]["loop_lag_ms"]["p99"]
    assert outcome.result["audit"]["drift_ms"]["p50"] == pytest.approx(statistics.median(drift), abs=0.05)
    assert outcome.result["throughput"]["offered_per_s"] == pytest.approx(30.0, rel=0.4)  # 60 Poisson arrivals


def test_our_own_work_on_a_request_is_done_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt takes milliseconds to encode; none of them may count as the server's."""
    encode = BenchClient.encode

    def slow(self: BenchClient, request: TraceRequest, request_id: str) -> bytes:
        end = time.perf_counter() + 0.01
        while time.perf_counter() < end:
            pass
        return encode(self, request, request_id)

    monkeypatch.setattr(BenchClient, "encode", slow)
    with FakeServer(tokens=1, first_ms=5) as server:
        outcome = run(server.url, rate=20.0, arrivals="constant", requests=20)
    assert statistics.median(ms(record.intended_ns, record.ready_ns) for record in outcome.records) < 5


def test_fr_058_a_role_only_chunk_is_not_the_first_token() -> None:
    outcome = run_right(
        {"tokens": 10, "role_ms": 50, "first_ms": 500, "gap_ms": 20, "stagger_ms": 3.7}, concurrency=8, requests=24
    )
    latency = outcome.result["latency"]
    assert latency["ttft_ms"]["p50"] > 499
    assert latency["itl_ms"]["max"] < 400  # nothing near 450 ms in the gap list
    assert latency["itl_ms"]["p50"] == pytest.approx(20, abs=5)


@pytest.mark.parametrize("kind", ["reasoning", "tool"])
def test_fr_058_reasoning_and_tools_are_first_tokens(kind: str) -> None:
    outcome = run_right({"tokens": 4, "first_ms": 50, "gap_ms": 200, "stagger_ms": 3.7, kind: True}, concurrency=8, requests=24)
    assert outcome.result["latency"]["ttft_ms"]["max"] < 200


@pytest.mark.parametrize("usage", ["end", "every"])
def test_fr_059_four_tokens_a_chunk(usage: str) -> None:
    scenario = {"tokens": 60, "per_chunk": 4, "first_ms": 80, "gap_ms": 80, "stagger_ms": 3.7, "usage": usage}
    outcome = run_right(scenario, concurrency=8, requests=24)
    result = outcome.result
    assert result["tokens"]["output"] == 1440
    assert result["latency"]["tpot_ms"]["p50"] == pytest.approx(20, abs=1)
    assert result["latency"]["itl_ms"]["mean"] == pytest.approx(20, abs=1)
    assert result["latency"]["chunk_gap_ms"]["mean"] == pytest.approx(80, abs=4)
    assert result["tokens"]["gaps"] == ("counted in every chunk" if usage == "every" else "spread by text length")
    # both views agree with the total time: 56 tokens came after the first chunk
    for record in outcome.records:
        one = request_metrics(record, spread=True)
        assert 56 * (one.tpot_ms or 0) == pytest.approx(sum(one.itl_ms)) == pytest.approx(sum(one.chunk_gap_ms))


def test_fr_059_blanks_are_counted_by_usage() -> None:
    with FakeServer(tokens=100, per_chunk=4, text=" ", first_ms=5, gap_ms=5) as server:
        outcome = run(server.url, requests=1)
    assert outcome.result["tokens"]["output"] == 100
    assert outcome.result["tokens"]["source"] == "usage"


def test_missing_usage_is_counted_and_said() -> None:
    with FakeServer(tokens=12, per_chunk=3, first_ms=5, gap_ms=5, usage="none") as server:
        by_server = run(server.url, requests=2, usage="off", approximate_lengths=False)
        by_chunks = run(server.url, requests=2, usage="off")
    assert (by_server.result["tokens"]["source"], by_server.result["tokens"]["output"]) == ("tokenizer", 24)
    assert (by_chunks.result["tokens"]["source"], by_chunks.result["tokens"]["output"]) == ("chunks", 8)


def test_fr_060_a_stall_shows_in_the_tail() -> None:
    """2 s at 50 requests a second: 100 of 250 requests meet the stall, though only 8 connections feel it."""
    with FakeServer(tokens=2, first_ms=10, gap_ms=5, freeze_at_s=1.5, freeze_s=2.0) as server:
        few = run(server.url, rate=50.0, arrivals="constant", requests=250, max_connections=8)
    latency = few.result["latency"]
    assert latency["ttft_ms"]["p99"] > 1800
    assert latency["ttft_ms"]["p90"] > 1000
    # what a generator reports that counts from the actual send: 8 of 250 requests
    assert latency["ttft_from_send_ms"]["p95"] < 1000
    assert latency["send_wait_ms"]["p90"] > 1000
    assert few.result["throughput"]["offered_per_s"] == pytest.approx(50.0, rel=0.02)
    assert not few.result["audit"]["saturated"]


@pytest.mark.full
def test_fr_060_as_reported() -> None:
    """6 s frozen in the middle of 30 s at 10 requests a second."""
    with FakeServer(tokens=2, first_ms=20, gap_ms=5, freeze_at_s=12.0, freeze_s=6.0) as server:
        outcome = run(server.url, rate=10.0, arrivals="constant", requests=300, max_connections=2)
    assert outcome.result["latency"]["ttft_ms"]["p95"] > 4000


def test_a_trace_is_replayed_at_its_times(tmp_path: Any) -> None:
    message = [{"role": "user", "content": "hello"}]
    requests = [
        TraceRequest(id="a", t=10.0, messages=message, session="s"),
        TraceRequest(id="b", t=10.1, messages=message, session="s"),  # its predecessor takes until 10.2
        TraceRequest(id="c", t=10.6, messages=message),
    ]
    write_trace(tmp_path / "t.jsonl", requests)
    with FakeServer(tokens=2, first_ms=180, gap_ms=20) as server:
        outcome = run(server.url, trace=str(tmp_path / "t.jsonl"), speed=2.0)
    by_id = {record.source: record for record in outcome.records}
    assert (by_id["c"].intended_ns - by_id["a"].intended_ns) / 1e9 == pytest.approx(0.3)
    assert by_id["b"].intended_ns >= by_id["a"].end_ns
    assert outcome.result["load"]["text"] == "trace at its own times, 2 × speed"


def test_a_duration_ends_the_run_and_warmup_is_apart() -> None:
    with FakeServer(tokens=4, first_ms=20, gap_ms=10) as server:
        outcome = run(server.url, concurrency=2, duration_s=0.8, warmup=4, prompts=5)
        assert len(server.log()) == len(outcome.records)
    assert [record.phase for record in outcome.records[:5]] == ["warmup"] * 4 + ["measured"]
    assert outcome.result["throughput"]["duration_s"] == pytest.approx(0.8, abs=0.02)
    assert 15 <= outcome.result["requests"]["measured"] <= 34
    assert "prompts repeat" in " ".join(outcome.result["notes"])


def test_a_busy_client_says_that_it_is_saturated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece of an answer costs this client 10 ms of CPU: it cannot keep up, and the result is an error."""
    from hasten.bench.answer import AnswerReader

    feed = AnswerReader.feed

    def slow(self: AnswerReader, data: bytes, now_ns: int) -> None:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        feed(self, data, now_ns)

    monkeypatch.setattr(AnswerReader, "feed", slow)
    monkeypatch.setattr("hasten.bench.audit.MAX_CPU_SHARE", 0.1)  # neighbours may leave us little of the core
    with FakeServer(tokens=4, first_ms=2, gap_ms=1) as server:
        outcome = run(server.url, concurrency=8, requests=12)
    assert outcome.result["audit"]["saturated"]
    assert outcome.exit_code == 1
    assert "saturated" in outcome.result["audit"]["findings"][0]["text"]
    assert outcome.result["audit"]["loop_lag_ms"]["max"] > 15


def test_a_kept_connection_that_was_closed_is_opened_again() -> None:
    """A server that closes after each answer without saying so: sent again, once, and never counted as an error."""

    async def main() -> tuple[list[RequestRecord], int]:
        opened = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            await reader.readuntil(b"\r\n\r\n")
            body = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(body) + body)
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")  # the next request gets no answer
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        endpoint = parse_endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        client = BenchClient(endpoint, ClientOptions(model="m"))
        jobs: Iterator[Job] = (Job([TraceRequest(id=str(i), prompt="x")]) for i in itertools.count())
        made = await Runner(client, Limits(max_requests=3)).closed_loop(jobs, 1)
        await client.close()
        server.close()
        return made.records, opened

    records, opened = run_loop(main())
    assert [record.error for record in records] == [None] * 3
    assert [record.retried for record in records] == [False, True, True]
    assert opened == 3
    assert summarize(records, Targets())["requests"]["retried"] == 2
