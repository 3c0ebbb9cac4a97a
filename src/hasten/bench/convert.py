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
_TEXTS = ("text", "texts", "text_input", "messages", "turns")
_NOT_KEPT = ("image", "images", "audio", "audios", "video", "videos", "payload", "payloads")


def convert(path: Path, kind: str, *, seed: int = 0, notes: list[str] | None = None) -> list[TraceRequest]:
    """Read a trace of another tool. What a user must know of the result is added to `notes`.

    Args:
        kind: mooncake, aiperf, or auto (mooncake if a line has hash_ids).
    Raises: UsageError for an unknown kind; BadFile naming the line.
    """
    notes = [] if notes is None else notes
    rows = _rows(path)
    if kind == "auto":
        kind = "mooncake" if any("hash_ids" in row for _, row in rows) else "aiperf"
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
    lost = _settle_times(requests)
    if lost:
        notes.append(f"{len(requests) - lost} of {len(requests)} requests have no time: {lost} others lose theirs")
    return requests


def _settle_times(requests: list[TraceRequest]) -> int:
    """Give turns without a timestamp that of their predecessor. If requests are left without one, the trace has no times at
    all; returns how many lose theirs by that.
    """
    last_t: dict[str, float] = {}
    for request in requests:
        if request.t is None and request.session is not None:
            request.t = last_t.get(request.session)
        if request.t is not None and request.session is not None:
            last_t[request.session] = request.t
    num_timed = sum(request.t is not None for request in requests)
    if num_timed < len(requests):
        for request in requests:
            request.t = None
    return num_timed if num_timed < len(requests) else 0


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

    The text is made here, a word for a token; requests that share leading ids share leading text. Rows with a text of their
    own (AIPerf's additions to the format) are read as AIPerf's.
    """
    if any(name in row for name in _TEXTS):
        yield from _aiperf(row, number, seed)
        return
    _refuse(row)
    length = int(row["input_length"])
    ids = list(row.get("hash_ids") or [])
    if ids and not length // MOONCAKE_BLOCK <= len(ids) <= -(-length // MOONCAKE_BLOCK):
        raise ValueError(
            f"{len(ids)} hash_ids for {length} tokens are not blocks of {MOONCAKE_BLOCK} tokens: this is no Mooncake trace, "
            "and its times may not be milliseconds"
        )
    pieces = []
    for place, hash_id in enumerate(ids):
        count = min(MOONCAKE_BLOCK, length - place * MOONCAKE_BLOCK)
        if count > 0:
            pieces.append(block_words(f"{seed}:{hash_id}", count))
    rest = length - MOONCAKE_BLOCK * len(ids)
    if rest > 0:
        pieces.append(block_words(f"{seed}:line {number}", rest))
    message = {"role": "user", "content": " ".join(pieces)}
    yield _request(row, f"mooncake-{number}", _session(row), [message], num_prompt_tokens=length)


def _aiperf(row: Row, number: int, seed: int) -> Iterator[TraceRequest]:
    """One request a line (text, texts, text_input, messages or input_length), or a conversation of `turns`.

    timestamp and delay are milliseconds. In a conversation each turn brings what is new, and the server's own answers
    stand in between; leading system turns are no requests of their own.
    """
    turns = row.get("turns")
    if turns is None:
        yield _aiperf_turn(row, f"aiperf-{number}", _session(row), [], seed, carry=row.get("message_mode") == "delta")
        return
    _refuse(row)
    system: list[dict[str, Any]] = []
    for place, turn in enumerate(turns):
        fields: Row = {"text": turn} if isinstance(turn, str) else turn
        session = _session(row) or f"line-{number}"
        request = _aiperf_turn(fields, f"aiperf-{number}-{place}", session, system, seed, carry=True)
        if fields.get("role") == "system":
            system = list(request.messages or [])
            continue
        system = []
        yield request


def _aiperf_turn(
    row: Row, name: str, session: str | None, before: list[dict[str, Any]], seed: int, *, carry: bool
) -> TraceRequest:
    _refuse(row)
    length: int | None = None
    if row.get("messages") is not None:
        messages = [*before, *row["messages"]]
    else:
        text = row.get("text", row.get("text_input"))
        texts = row.get("texts") or ([text] if text is not None else None)
        if texts is None:
            length = int(row["input_length"])
            texts = [block_words(f"{seed}:{name}", length)]
        parts = [text if isinstance(text, str) else " ".join(text.get("contents", [])) for text in texts]
        messages = [*before, {"role": row.get("role", "user"), "content": "\n".join(parts)}]
    return _request(row, name, session, messages, num_prompt_tokens=None if before or carry else length, carry=carry)


def _request(
    row: Row,
    name: str,
    session: str | None,
    messages: list[dict[str, Any]],
    *,
    num_prompt_tokens: int | None,
    carry: bool = False,
) -> TraceRequest:
    """What the kinds have in common."""
    length = row.get("output_length") or row.get("max_tokens")
    tools = {"tools": row["tools"]} if row.get("tools") else {}
    return TraceRequest(
        id=name,
        t=_seconds(row),
        session=session,
        messages=messages,
        max_tokens=None if length is None else max(1, int(length)),
        params={**tools, **(row.get("extra") or {})},
        output_tokens=None if row.get("output_length") is None else int(row["output_length"]),
        num_prompt_tokens=num_prompt_tokens,
        carry_answers=carry and session is not None,
        think_s=float(row.get("delay") or 0.0) / 1e3,
    )


def _refuse(row: Row) -> None:
    """Raises ValueError for what would be sent as another request than the one recorded."""
    for name in _NOT_KEPT:
        if row.get(name):
            raise ValueError(f"{name!r} cannot be kept: only text is sent")


def _session(row: Row) -> str | None:
    return _text(row.get("session_id") or row.get("conversation_id"))


def _seconds(row: Row) -> float | None:
    return None if row.get("timestamp") is None else float(row["timestamp"]) / 1e3


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
