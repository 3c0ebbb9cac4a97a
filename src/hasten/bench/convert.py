"""Traces of other tools, in ours."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hasten.bench.trace import TraceRequest
from hasten.bench.words import WORDS
from hasten.errors import BadFile, UsageError

MOONCAKE_BLOCK = 512  # tokens behind one hash id of a Mooncake trace
Row = Mapping[str, Any]


def convert(path: Path, kind: str, *, seed: int = 0) -> list[TraceRequest]:
    """Read a trace of another tool.

    Args:
        kind: mooncake, aiperf, or auto (by the fields of the first line).
    Raises: UsageError for an unknown kind; BadFile naming the line.
    """
    rows = _rows(path)
    first = rows[0][1]
    if kind == "auto":
        kind = "mooncake" if "hash_ids" in first else "aiperf"
    makers: dict[str, Callable[[Row, int, int], Iterator[TraceRequest]]] = {"mooncake": _mooncake, "aiperf": _aiperf}
    if kind not in makers:
        raise UsageError(f"format {kind!r} is not known; known: auto, {', '.join(makers)}")
    requests: list[TraceRequest] = []
    for number, row in rows:
        try:
            for request in makers[kind](row, number, seed):
                request.check()
                requests.append(request)
        except (KeyError, TypeError, ValueError) as error:
            what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadFile(f"{path}, line {number}, read as {kind}: {what}") from None
    _settle_times(requests)
    return requests


def _settle_times(requests: list[TraceRequest]) -> None:
    """Give turns without a timestamp that of their predecessor; a trace whose conversations have none has no times at all."""
    last_t: dict[str, float] = {}
    for request in requests:
        if request.t is None and request.session is not None:
            request.t = last_t.get(request.session)
        if request.t is not None and request.session is not None:
            last_t[request.session] = request.t
    if any(request.t is None for request in requests):
        for request in requests:
            request.t = None


def _rows(path: Path) -> list[tuple[int, Row]]:
    rows: list[tuple[int, Row]] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append((number, msgspec.json.decode(line, type=dict[str, Any])))
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise BadFile(f"{path} is not JSONL with an object a line: {error}") from None
    if not rows:
        raise BadFile(f"{path} has no requests")
    return rows


def block_words(key: str, count: int) -> str:
    """Words that depend on the key alone, so that equal blocks of a trace are equal text here."""
    rng = random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big"))
    return " ".join(rng.choice(WORDS) for _ in range(count))


def _mooncake(row: Row, number: int, seed: int) -> Iterator[TraceRequest]:
    """Fields: timestamp (ms), input_length, output_length (tokens), hash_ids (one per 512 tokens, equal ids: equal text).

    The text is made here, a word for a token; requests that share leading ids share leading text.
    """
    length = int(row["input_length"])
    ids = list(row.get("hash_ids") or [])
    pieces = []
    for place, hash_id in enumerate(ids):
        count = min(MOONCAKE_BLOCK, length - place * MOONCAKE_BLOCK)
        if count > 0:
            pieces.append(block_words(f"{seed}:{hash_id}", count))
    rest = length - MOONCAKE_BLOCK * len(ids)
    if rest > 0:
        pieces.append(block_words(f"{seed}:line {number}", rest))
    yield TraceRequest(
        id=f"mooncake-{number}",
        t=_seconds(row),
        session=_text(row.get("session_id")),
        messages=[{"role": "user", "content": " ".join(pieces)}],
        max_tokens=max(1, int(row["output_length"])),
        output_tokens=int(row["output_length"]),
    )


def _aiperf(row: Row, number: int, seed: int) -> Iterator[TraceRequest]:
    """One turn a line (text, texts, text_input, messages or input_length; timestamp in ms, session_id), or `turns` of them.

    A turn without a timestamp follows its predecessor at once; `delay` is not kept, as our traces have absolute times.
    """
    session = _text(row.get("session_id") or row.get("conversation_id"))
    turns = row.get("turns")
    if turns is None:
        yield _aiperf_turn(row, f"aiperf-{number}", session, [], number, seed)
        return
    history: list[dict[str, Any]] = []
    for place, turn in enumerate(turns):
        fields = {"text": turn} if isinstance(turn, str) else turn
        name = f"aiperf-{number}-{place}"
        request = _aiperf_turn(fields, name, session or f"line-{number}", history, number, seed)
        history = list(request.messages or [])
        yield request


def _aiperf_turn(
    row: Row, name: str, session: str | None, history: list[dict[str, Any]], number: int, seed: int
) -> TraceRequest:
    if row.get("messages") is not None:
        messages = list(row["messages"])
    else:
        text = row.get("text", row.get("text_input"))
        texts = row.get("texts") or ([text] if text is not None else None)
        if texts is None:
            texts = [block_words(f"{seed}:{name}", int(row["input_length"]))]
        parts = [text if isinstance(text, str) else " ".join(text.get("contents", [])) for text in texts]
        messages = [*history, {"role": row.get("role", "user"), "content": "\n".join(parts)}]
    length = row.get("output_length") or row.get("max_tokens")
    return TraceRequest(
        id=name,
        t=_seconds(row),
        session=session,
        messages=messages,
        max_tokens=None if length is None else int(length),
        output_tokens=None if row.get("output_length") is None else int(row["output_length"]),
    )


def _seconds(row: Row) -> float | None:
    return None if row.get("timestamp") is None else float(row["timestamp"]) / 1e3


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
