"""Bench against naive models, with inputs nobody thought of."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.bench.record import RequestRecord
from hasten.bench.request_metrics import request_metrics, spread_tokens
from hasten.bench.sse import SseParser
from hasten.bench.stats import QUANTILES, bootstrap

_DATA = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)
_LINE = st.one_of(_DATA.map(lambda text: f"data: {text}"), st.sampled_from([": note", "event: x", "id: 1", "retry"]))
_EVENT = st.tuples(st.sampled_from(["\n", "\r\n", "\r"]), st.lists(_LINE, min_size=1, max_size=4))  # line end, lines


def _naive(text: str) -> list[bytes]:
    """The grammar on the whole text at once."""
    events, data = [], None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in lines[:-1]:
        if line == "":
            if data is not None:
                events.append("\n".join(data).encode())
            data = None
        elif line.startswith("data:"):
            value = line[5:]
            data = [*(data or []), value[1:] if value.startswith(" ") else value]
    return events


@settings(max_examples=100, deadline=None)
@given(st.lists(_EVENT, max_size=6), st.lists(st.integers(1, 40), max_size=30))
def test_events_do_not_depend_on_the_pieces(events: list[tuple[str, list[str]]], sizes: list[int]) -> None:
    text = "".join(end.join(lines) + end + end for end, lines in events)
    data = text.encode()
    parser, got, at = SseParser(), [], 0
    for size in [*sizes, len(data)]:
        if at < len(data):
            got.extend(parser.feed(data[at : at + size]))
            at += size
    assert got == _naive(text)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50_000_000), st.integers(1, 30)), min_size=1, max_size=20),
    st.integers(0, 100),
    st.integers(0, 10**9),
)
def test_token_gaps_add_up_to_the_time_of_the_tokens(chunks: list[tuple[int, int]], extra: int, intended_ns: int) -> None:
    times = [int(at) for at in intended_ns + np.cumsum([gap for gap, _ in chunks])]
    total = len(chunks) + extra
    record = RequestRecord(
        id="r",
        intended_ns=intended_ns,
        sent_ns=intended_ns,
        chunk_ns=times,
        chunk_chars=[chars for _, chars in chunks],
        completion_tokens=total,
        finish_ns=times[-1],
    )
    counts = spread_tokens(record)
    assert sum(counts) == total
    assert min(counts) >= 1
    one = request_metrics(record, spread=True)
    span_ms = (times[-1] - times[0]) / 1e6
    assert abs(sum(one.itl_ms) - span_ms) < 1e-6 * max(1.0, span_ms)
    assert len(one.itl_ms) == total - counts[0]
    if one.tpot_ms is not None:
        assert abs(one.tpot_ms * len(one.itl_ms) - span_ms) < 1e-6 * max(1.0, span_ms)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50_000_000), st.integers(0, 5)), min_size=2, max_size=20))
def test_token_gaps_add_up_with_the_servers_own_counts(chunks: list[tuple[int, int]]) -> None:
    """Also where a chunk finishes no token."""
    times = [int(at) for at in np.cumsum([gap for gap, _ in chunks])]
    counts = [int(so_far) for so_far in np.cumsum([count for _, count in chunks])]
    record = RequestRecord(
        id="r", chunk_ns=times, chunk_chars=[1] * len(times), chunk_tokens=counts, completion_tokens=counts[-1]
    )
    one = request_metrics(record, spread=True)
    assert len(one.itl_ms) == counts[-1] - counts[0]
    span_ms = (times[-1] - times[0]) / 1e6
    assert abs(sum(one.chunk_gap_ms) - span_ms) < 1e-6 * max(1.0, span_ms)
    if one.itl_ms:
        assert abs(sum(one.itl_ms) - span_ms) < 1e-6 * max(1.0, span_ms)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 1000), st.data())
def test_a_bootstrap_draw_is_a_quantile_of_drawn_blocks(values: list[int], seed: int, data: st.DataObject) -> None:
    """Each draw, made again by writing the drawn blocks out one after the other."""
    num_blocks = data.draw(st.integers(1, len(values)))
    blocks = np.arange(len(values)) * num_blocks // len(values)
    array = np.asarray(values, dtype=np.float64)
    draws = bootstrap(array, blocks, ["mean", *QUANTILES], num_draws=100, seed=seed)
    times = np.random.default_rng(seed).multinomial(num_blocks, [1 / num_blocks] * num_blocks, size=100)
    for draw in range(5):
        sample = sorted(value for value, block in zip(values, blocks, strict=True) for _ in range(times[draw][block]))
        assert abs(draws["mean"][draw] - sum(sample) / len(sample)) < 1e-9
        for name, q in QUANTILES.items():
            rank = next(k for k in range(1, len(sample) + 1) if k >= q * len(sample) - 1e-9)
            assert draws[name][draw] == sample[rank - 1]
