"""The client's arithmetic of time against a clock that a script sets: exact to the nanosecond, whatever the machine does."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Any

import pytest

from hasten.bench import client as client_module
from hasten.bench import connection as connection_module
from hasten.bench.client import BenchClient, ClientOptions
from hasten.bench.connection import Connection, parse_endpoint
from hasten.bench.record import RequestRecord
from hasten.bench.request_metrics import RequestMetrics, request_metrics
from hasten.bench.trace import TraceRequest

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Clock:
    def __init__(self) -> None:
        self.now_ns = 5_000_000_000

    def perf_counter_ns(self) -> int:
        return self.now_ns


class Wire(asyncio.Transport):
    """Takes the request; the script plays the server."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    def write(self, data: Any) -> None:
        self.asked.set()

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Script:
    """An answer as bytes on the wire, cut at random places, with a time for each piece."""

    def __init__(self, seed: int, num_tokens: int, newline: str) -> None:
        rng = random.Random(seed)
        self._newline = newline
        self.wire = bytearray(_HEAD)
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, rng)
        self.text_ends = [self._event({"choices": [{"delta": {"content": f" é{i}"}}]}, rng) for i in range(num_tokens)]
        self.finish_end = self._event({"choices": [{"delta": {}, "finish_reason": "length"}]}, rng)
        self._event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": num_tokens}}, rng)
        self.done_end = self._event("[DONE]", rng)
        self.wire += b"0\r\n\r\n"
        cuts = sorted(rng.sample(range(1, len(self.wire)), min(len(self.wire) - 1, rng.choice([1, 5, 40, 400]))))
        self.pieces = [bytes(self.wire[a:b]) for a, b in zip([0, *cuts], [*cuts, len(self.wire)], strict=True)]
        self.gaps_ns = [rng.randrange(1, 30_000_000) for _ in self.pieces]
        self.parsed_later = [rng.random() < 0.5 for _ in self.pieces]

    def _event(self, body: Any, rng: random.Random) -> int:
        """Returns the place on the wire after the last byte without which nobody can know the event."""
        data = f"data: {body if isinstance(body, str) else json.dumps(body)}{self._newline}{self._newline}".encode()
        # the event ends at the blank line: with \r\n a parser may know at its \r already, but not before
        cut = rng.choice([None, rng.randrange(1, len(data) - 2 * len(self._newline))])
        for part in [data] if cut is None else [data[:cut], data[cut:]]:
            self.wire += b"%x\r\n" % len(part) + part
            end = len(self.wire)
            self.wire += b"\r\n"
        return end

    def arrival_of(self, end: int, begin_ns: int) -> int:
        """When the piece with the byte before `end` came, if the first gap begins at `begin_ns`."""
        reached, now_ns = 0, begin_ns
        for piece, gap_ns in zip(self.pieces, self.gaps_ns, strict=True):
            reached, now_ns = reached + len(piece), now_ns + gap_ns
            if reached >= end:
                return now_ns
        raise AssertionError("past the end")


async def _play(script: Script, clock: Clock, record: RequestRecord) -> int:
    """Send one request and answer it by the script; returns when the answer began."""
    made: list[Connection] = []
    wire = Wire()

    async def connect(factory: Any, *_: Any, **__: Any) -> tuple[Wire, Connection]:
        clock.now_ns += 700_000
        made.append(factory())
        made[0].connection_made(wire)
        return wire, made[0]

    asyncio.get_running_loop().create_connection = connect  # type: ignore[method-assign, assignment]
    client = BenchClient(parse_endpoint("http://x:1"), ClientOptions(model="m"))
    record.intended_ns = clock.now_ns - 250_000  # the client got round to it a quarter of a millisecond late
    payload = client.encode(TraceRequest(id="a", prompt="x"), "a")
    sending = asyncio.ensure_future(client.send(payload, record))
    await wire.asked.wait()
    begin_ns = clock.now_ns
    for piece, gap_ns, later in zip(script.pieces, script.gaps_ns, script.parsed_later, strict=True):
        clock.now_ns += gap_ns
        made[0].data_received(piece)
        if not later:  # else the next piece comes before this one is parsed
            await asyncio.sleep(0)
    clock.now_ns += 10**9  # parsing late must not move a stamp
    await sending
    return begin_ns


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("seed", range(40))
def test_every_time_is_exact(seed: int, newline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(connection_module, "time", clock)
    monkeypatch.setattr(client_module, "time", clock)
    num_tokens = random.Random(seed).choice([1, 2, 7, 30])
    script = Script(seed, num_tokens, newline)
    record = RequestRecord(id="a")
    asked_ns = clock.now_ns
    begin_ns = asyncio.run(_play(script, clock, record))
    early = len(newline) - 1  # see Script._event
    texts = [{script.arrival_of(end - back, begin_ns) for back in (0, early)} for end in script.text_ends]
    assert record.error is None
    assert (record.ready_ns, record.connect_ns, record.sent_ns) == (asked_ns, 700_000, asked_ns + 700_000)
    assert len(record.chunk_ns) == num_tokens
    assert all(got in want for got, want in zip(record.chunk_ns, texts, strict=True))
    assert record.finish_ns in {script.arrival_of(script.finish_end - back, begin_ns) for back in (0, early)}
    assert record.end_ns in {script.arrival_of(script.done_end - back, begin_ns) for back in (0, early)}
    _check(request_metrics(record, spread=False), record, num_tokens)


def _check(one: RequestMetrics, record: RequestRecord, num_tokens: int) -> None:
    """The definitions, written out again in nanoseconds."""
    first, last = record.chunk_ns[0], record.chunk_ns[-1]
    assert round((one.ttft_ms or 0) * 1e6) == first - record.intended_ns
    assert round((one.ttft_from_send_ms or 0) * 1e6) == first - record.sent_ns
    assert round(one.send_wait_ms * 1e6) == 250_000 + 700_000
    assert round(one.e2e_ms * 1e6) == record.finish_ns - record.intended_ns
    assert round(sum(one.itl_ms) * 1e6) == round(sum(one.chunk_gap_ms) * 1e6) == last - first
    between = [later - earlier for earlier, later in itertools.pairwise(record.chunk_ns)]
    assert [round(gap * 1e6) for gap in one.itl_ms] == between
    if num_tokens > 1:
        assert one.tpot_ms == pytest.approx((last - first) / 1e6 / (num_tokens - 1), rel=1e-12)
    else:
        assert one.tpot_ms is None
