"""Metrics from records with known times, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hasten.bench.cost import token_cost
from hasten.bench.metrics import Window, summarize
from hasten.bench.record import RequestRecord, read_raw, write_raw
from hasten.bench.request_metrics import Targets, request_metrics, spread_tokens, token_count
from hasten.bench.stats import block_ids, bootstrap, describe, quantile
from hasten.errors import BadFile, UsageError

MS = 1_000_000


def _record(chunks_ms: list[float], *, intended_ms: float = 0, tokens: int | None = None, **more: object) -> RequestRecord:
    times = [int(ms * MS) for ms in chunks_ms]
    facts = {
        "id": "r",
        "intended_ns": int(intended_ms * MS),
        "ready_ns": int(intended_ms * MS),
        "sent_ns": int(intended_ms * MS),
        "chunk_ns": times,
        "chunk_chars": [5] * len(times),
        "finish_ns": times[-1] if times else 0,
        "end_ns": times[-1] if times else int(intended_ms * MS),
        "completion_tokens": tokens,
        "prompt_tokens": 10,
    }
    return RequestRecord(**{**facts, **more})  # type: ignore[arg-type]


def test_one_token_a_chunk() -> None:
    one = request_metrics(_record([50, 70, 90, 150], intended_ms=10, tokens=4), spread=False)
    assert (one.ttft_ms, one.e2e_ms) == (40.0, 140.0)
    assert one.tpot_ms == pytest.approx(100 / 3)
    assert one.itl_ms == [20.0, 20.0, 60.0]


def test_an_end_token_that_is_counted_has_its_time() -> None:
    """Five tokens 20 ms apart, the last of them the end token: its time is the finish reason's."""
    stopped = _record([50, 70, 90, 110], tokens=5, finish_reason="stop", finish_ns=130 * MS)
    assert request_metrics(stopped, spread=False).tpot_ms == pytest.approx(20)
    not_counted = _record([50, 70, 90, 110], tokens=4, finish_reason="stop", finish_ns=130 * MS)
    assert request_metrics(not_counted, spread=False).tpot_ms == pytest.approx(20)
    full = _record([50, 70, 90, 110], tokens=5, finish_reason="length", finish_ns=190 * MS)
    assert request_metrics(full, spread=False).tpot_ms == pytest.approx(15)


def test_counts_in_every_chunk_tell_an_end_token() -> None:
    """Four tokens a chunk: whether the end is counted can only be seen where the server counts in every chunk."""
    facts = {"finish_reason": "stop", "finish_ns": 290 * MS, "chunk_tokens": [4, 8]}
    not_counted = _record([50, 130], tokens=8, **facts)
    assert request_metrics(not_counted, spread=True).tpot_ms == pytest.approx(80 / 4)
    counted = _record([50, 130], tokens=9, **facts)
    assert request_metrics(counted, spread=True).tpot_ms == pytest.approx(240 / 5)


def test_a_chunk_that_finishes_no_token_loses_no_time() -> None:
    """A token of half a character: the count stands still, and the wait for the other half is one wait."""
    one = request_metrics(_record([0, 30, 60, 90, 100], tokens=6, chunk_tokens=[2, 2, 4, 6, 6]), spread=True)
    assert one.itl_ms == [30.0, 30.0, 15.0, 25.0]
    assert sum(one.itl_ms) == sum(one.chunk_gap_ms) == 100.0
    assert request_metrics(_record([0, 30], tokens=2, chunk_tokens=[2, 2]), spread=True).itl_ms == []


def test_an_answer_without_a_token_meets_no_target() -> None:
    empty = request_metrics(_record([], tokens=0, end_ns=5 * MS), spread=False)
    assert not any(empty.meets(targets) for targets in (Targets(tpot_ms=1.0), Targets(ttft_ms=1.0)))


def test_goodput_and_throughput_are_rates_of_one_window() -> None:
    """Ten answers, one each 100 ms, five of them in the window: all meet the target, so both rates are the same."""
    records = [_record([i * 100, i * 100 + 50], intended_ms=i * 100 - 20, tokens=2) for i in range(1, 11)]
    summary = summarize(records, Targets(ttft_ms=100.0), Window(80 * MS, 580 * MS))
    assert summary["throughput"]["requests_per_s"] == summary["goodput"]["requests_per_s"] == pytest.approx(10.0)
    assert summary["goodput"]["share"] == 1.0


def test_outcomes_are_kept_for_compare() -> None:
    records = [
        _record([20], intended_ms=10),
        _record([], intended_ms=12, error="http_429"),
        _record([], intended_ms=13, error="interrupted"),
        _record([99], intended_ms=14),
    ]
    samples = summarize(records, Targets(ttft_ms=15.0))["samples"]
    assert (samples["failed"], samples["met"]) == ([0, 1, 0], [1, 0, 0])
    assert summarize(records, Targets())["samples"]["met"] is None


def test_no_interval_from_too_few_values() -> None:
    row = describe(np.arange(100.0), block_ids(100))
    assert row["p90_interval"] is not None
    assert (row["p95_interval"], row["p99_interval"]) == (None, None)
    assert describe(np.arange(1000.0), block_ids(1000))["p99_interval"] is not None
    assert describe(np.arange(29.0), block_ids(29))["mean_interval"] is None


@pytest.mark.parametrize(("name", "count"), [("p90", 100), ("p99", 1000)])
def test_tail_intervals_hold_the_truth_as_often_as_can_be(name: str, count: int) -> None:
    """At the least size that gets one; a bootstrap's tail interval is a little short of its 95 %."""
    rng = np.random.default_rng(8)
    truth = -np.log(1 - float(name[1:]) / 100)
    rows = [describe(rng.exponential(size=count), block_ids(count)) for _ in range(100)]
    assert sum(row[f"{name}_interval"][0] <= truth <= row[f"{name}_interval"][1] for row in rows) >= 83  # type: ignore[index]


def test_latency_counts_from_the_intended_time() -> None:
    record = _record([50], intended_ms=10, sent_ns=40 * MS, ready_ns=15 * MS)
    one = request_metrics(record, spread=False)
    assert (one.ttft_ms, one.ttft_from_send_ms, one.send_wait_ms) == (40.0, 10.0, 30.0)


def test_four_tokens_a_chunk_are_spread_and_add_up() -> None:
    record = _record([80 * n for n in range(1, 26)], tokens=100)
    one = request_metrics(record, spread=True)
    assert one.tpot_ms == pytest.approx(20.0)
    assert len(one.itl_ms) == 96
    assert sum(one.itl_ms) == pytest.approx(80 * 24)  # both views agree with the total time
    assert one.chunk_gap_ms == [80.0] * 24
    tokens = summarize([record], Targets())["tokens"]
    assert tokens["per_chunk"] == 4.0
    assert tokens["gaps"] == "spread by text length"


def test_spreading_follows_text_or_the_servers_own_counts() -> None:
    by_text = _record([1, 2, 3], tokens=12, chunk_chars=[1, 1, 10])
    counts = spread_tokens(by_text)
    assert sum(counts) == 12
    assert counts[2] > counts[0] >= 1
    by_server = _record([1, 2, 3], tokens=12, chunk_chars=[1, 1, 10], chunk_tokens=[7, 8, 12])
    assert spread_tokens(by_server) == [7, 1, 4]


def test_token_totals_come_from_usage_then_tokenizer_then_chunks() -> None:
    assert token_count(_record([1, 2], tokens=100, counted_tokens=7)) == 100
    assert token_count(_record([1, 2], counted_tokens=7)) == 7
    assert token_count(_record([1, 2])) == 2
    sources = [
        summarize([_record([1, 2], **more)], Targets())["tokens"]["source"]
        for more in ({"tokens": 2}, {"counted_tokens": 2}, {})
    ]  # type: ignore[arg-type]
    assert sources == ["usage", "tokenizer", "chunks"]


def test_a_single_chunk_has_no_time_per_token() -> None:
    one = request_metrics(_record([30], tokens=5), spread=True)
    assert (one.tpot_ms, one.itl_ms) == (None, [])
    assert one.meets(Targets(tpot_ms=1.0))
    assert not request_metrics(_record([]), spread=False).meets(Targets(ttft_ms=1000.0))


def test_errors_and_warmup_stay_out_of_latencies() -> None:
    records = [
        _record([1000], phase="warmup"),
        _record([20, 30], intended_ms=10, tokens=2),
        _record([40], intended_ms=11, error="reset", error_detail="gone"),
        _record([], intended_ms=12, error="http_429", error_detail="slow down"),
        _record([], intended_ms=13, error="interrupted"),
    ]
    summary = summarize(records, Targets(ttft_ms=15.0))
    assert summary["latency"]["ttft_ms"]["n"] == 1
    requests = summary["requests"]
    assert (requests["measured"], requests["ok"], requests["errors"], requests["interrupted"], requests["warmup"]) == (
        4,
        1,
        2,
        1,
        1,
    )
    assert requests["error_rate"] == pytest.approx(2 / 3)
    assert requests["by_error"]["http_429"] == {"count": 1, "example": "slow down"}
    assert summary["goodput"]["share"] == pytest.approx(1 / 3)  # an error meets no target


def test_throughput_counts_tokens_that_arrived_in_the_window() -> None:
    records = [_record([i * 100, i * 100 + 50], intended_ms=i * 100 - 20, tokens=2) for i in range(1, 11)]
    whole = summarize(records, Targets())["throughput"]
    assert whole["output_tokens_per_s"] == pytest.approx(20 / 0.97)
    assert whole["offered_per_s"] == pytest.approx(10.0)
    half = summarize(records, Targets(), Window(80 * MS, 580 * MS))["throughput"]
    assert half["output_tokens_per_s"] == pytest.approx(10 / 0.5)


def test_nothing_answered() -> None:
    summary = summarize([_record([], error="connect")], Targets())
    assert summary["latency"]["ttft_ms"] == {"n": 0}
    assert summary["throughput"]["output_tokens_per_s"] == 0.0
    assert summarize([], Targets())["requests"]["measured"] == 0


def test_raw_records_give_the_same_summary(tmp_path: Path) -> None:
    records = [_record([i, i + 7, i + 9.5], tokens=3, session="s", turn=i) for i in range(1, 40)]
    path = tmp_path / "raw.jsonl"
    write_raw(path, {"url": "x"}, records)
    header, again = read_raw(path)
    assert header["url"] == "x"
    assert again == records
    assert summarize(again, Targets()) == summarize(records, Targets())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ('{"format": "other"}\n', "not a raw bench file"),
        ('{"format": "hasten-bench-raw/1"}\n{"id": 3}\n', "line 2"),
        ("nonsense\n", "line 1"),
    ],
)
def test_bad_raw_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_text(text)
    with pytest.raises(BadFile, match=words):
        read_raw(path)
    with pytest.raises(BadFile, match="cannot read"):
        read_raw(tmp_path / "none.jsonl")


@pytest.mark.parametrize("count", [1, 2, 3, 99, 100, 101])
def test_quantiles_are_observed_values(count: int) -> None:
    values = np.random.default_rng(count).permutation(np.arange(1.0, count + 1))
    for q in (0.5, 0.9, 0.99):
        rank = next(k for k in range(1, count + 1) if k >= q * count - 1e-9)  # nearest rank, counted out
        assert quantile(values, q) == rank


def test_bootstrap_spread_matches_theory() -> None:
    values = np.random.default_rng(3).normal(100.0, 10.0, size=2000)
    draws = bootstrap(values, np.arange(2000), ["mean", "p50"], num_draws=500)
    assert draws["mean"].std() == pytest.approx(10 / 2000**0.5, rel=0.15)
    # SE of a median of a normal: sqrt(pi / 2) times that of the mean; its bootstrap is noisier
    assert draws["p50"].std() == pytest.approx((np.pi / 2) ** 0.5 * 10 / 2000**0.5, rel=0.3)


def test_blocks_make_a_drifting_run_less_certain() -> None:
    drifting = np.repeat([1.0, 2.0, 3.0, 4.0], 250)
    alone = bootstrap(drifting, np.arange(1000), ["mean"])["mean"].std()
    in_blocks = bootstrap(drifting, block_ids(1000), ["mean"])["mean"].std()
    assert in_blocks > 3 * alone


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for trial in range(100):
        row = describe(rng.exponential(1.0, size=100), np.arange(100), seed=trial)
        low, high = row["p50_interval"]  # type: ignore[misc]
        held += low <= np.log(2) <= high
    assert 88 <= held <= 100  # 95 expected; below 88 has a chance of 0.3 %


def test_cost_splits_the_hour() -> None:
    # 10 requests one after the other: 0.25 s to the first token, 0.75 s after it
    records = [
        _record([i * 1000 + 250, i * 1000 + 1000], intended_ms=i * 1000, tokens=20, prompt_tokens=100) for i in range(10)
    ]
    cost = token_cost(3.6, summarize(records, Targets()), currency="EUR")
    assert cost is not None
    paid = 3.6 * 10 / 3600  # the run took 10 s
    assert cost["input_share"] == pytest.approx(0.25)
    assert cost["input_per_million"] == pytest.approx(paid * 0.25 / 1000 * 1e6)
    assert cost["output_per_million"] == pytest.approx(paid * 0.75 / 200 * 1e6)
    late = token_cost(3.6, summarize(records, Targets(e2e_ms=1.0)), currency="EUR")
    assert late is not None
    assert late["output_per_million"] is None  # nothing could be sold
    with pytest.raises(UsageError, match="positive"):
        token_cost(-1.0, summarize(records, Targets()), currency="EUR")
