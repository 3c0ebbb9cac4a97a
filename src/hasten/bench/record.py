"""Raw facts of one request, as JSONL: everything a metric is made from, so that metrics can be made again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from hasten.errors import BadFile

FORMAT = "hasten-bench-raw/1"
Phase = Literal["warmup", "measured"]


class RequestRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request. Times are `time.perf_counter_ns()` of the client (CLOCK_MONOTONIC on Linux); 0 means "never".

    id: unique to this run, sent as X-Request-Id. source: the id it has in the workload or the trace.
    intended_ns: when the load shape wanted it sent. Every latency counts from here.
    ready_ns: when the client got round to it; ready − intended is the client's own drift.
    sent_ns: when the first byte was handed to the socket; sent − ready is the wait for a connection.
    chunk_ns, chunk_chars: one entry per chunk that carried text, reasoning or a tool call. Role-only and empty chunks
        are not here.
    chunk_tokens: completion tokens so far, per chunk, where the server says so in every chunk; else empty.
    finish_ns: the answer is known to be complete (finish_reason, [DONE], or end of the body, whichever came first).
    error: None, or its kind: connect, reset, truncated, timeout, garbage, not_streamed, stream_error, interrupted, http_NNN.
    """

    id: str
    source: str | None = None
    phase: Phase = "measured"
    session: str | None = None
    turn: int = 0
    intended_ns: int = 0
    ready_ns: int = 0
    sent_ns: int = 0
    connect_ns: int = 0  # duration of opening a connection for this request; 0: one was open
    headers_ns: int = 0
    chunk_ns: list[int] = []
    chunk_chars: list[int] = []
    chunk_tokens: list[int] = []
    finish_ns: int = 0
    end_ns: int = 0
    status: int = 0
    error: str | None = None
    error_detail: str | None = None
    finish_reason: str | None = None
    asked_prompt_tokens: int | None = None
    max_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    counted_tokens: int | None = None  # by a tokenizer of ours, only where usage is missing
    num_garbage: int = 0
    num_empty_chunks: int = 0
    retried: bool = False  # the kept connection turned out closed before any byte of the answer; sent again
    text: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def write_raw(path: Path, header: dict[str, Any], records: Iterable[RequestRecord]) -> None:
    """One header line (`format`, clock, options, audit), then one record a line."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as out:
        out.write(encoder.encode({"format": FORMAT, **header}) + b"\n")
        for record in records:
            out.write(encoder.encode(record) + b"\n")


def read_raw(path: Path) -> tuple[dict[str, Any], list[RequestRecord]]:
    """Header and records. Raises BadFile naming the line."""
    decoder = msgspec.json.Decoder(RequestRecord)
    header: dict[str, Any] = {}
    records: list[RequestRecord] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    if number == 1:
                        header = msgspec.json.decode(line, type=dict[str, Any])
                        if header.get("format") != FORMAT:
                            raise BadFile(f"{path} is not a raw bench file: its first line has no format {FORMAT!r}")
                    else:
                        records.append(decoder.decode(line))
                except msgspec.MsgspecError as error:
                    raise BadFile(f"{path}, line {number}: {error}") from None
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    if not header:
        raise BadFile(f"{path} is empty")
    return header, records
