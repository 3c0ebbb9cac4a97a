"""Traces of other tools, in ours."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hasten.bench.trace import TraceRequest, check_sessions
from hasten.bench.words import WORDS
from hasten.errors import BadFile, UsageError

MOONCAKE_BLOCK = 512  # tokens behind one hash id of a Mooncake trace
KINDS = ("auto", "mooncake", "aiperf")
Row = Mapping[str, Any]
_OF_A_CONVERSATION = {"type", "session_id", "conversation_id"}
_OF_A_TURN = {"timestamp", "delay", "output_length", "max_tokens", "tools", "extra", "role", "message_mode", "context_mode"}
_PROMPTS = {"text", "texts", "text_input", "messages", "input_length", "payload"}
_NOT_KEPT = ("image", "images", "image_uuids", "audio", "audios", "video", "videos")
_OURS = ("model", "stream", "stream_options")  # decided by the run, whatever the recorded payload says
_CARRIES = {"deltas_without_responses": True, "message_array_with_responses": False}


@dataclass(slots=True)
class _Import:
    """What is kept from row to row."""

    kind: str
    seed: int
    begun: set[str] = field(default_factory=set)  # sessions that have a turn
    unread: set[str] = field(default_factory=set)  # names of fields that say nothing to us
    replaced: set[str] = field(default_factory=set)  # fields of payloads that the run decides


def convert(path: Path, kind: str, *, seed: int = 0, notes: list[str] | None = None) -> list[TraceRequest]:
    """Read a trace of another tool. What a user must know of the result is added to `notes`.

    Args:
        kind: mooncake, aiperf, or auto (mooncake if a line has hash_ids); rows may be of either, whatever it says.
    Raises: UsageError for an unknown kind; BadFile naming the line.
    """
    notes = [] if notes is None else notes
    if kind not in KINDS:
        raise UsageError(f"format {kind!r} is not known; known: {', '.join(KINDS)}")
    where, rows = _rows(path)
    if kind == "auto":
        kind = "mooncake" if any("hash_ids" in row for row in rows.values()) else "aiperf"
    state = _Import(kind, seed)
    requests: list[TraceRequest] = []
    for number, row in rows.items():
        try:
            for request in _requests(row, number, state):
                request.check()
                requests.append(request)
        except (KeyError, TypeError, ValueError) as error:
            what = f"field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadFile(f"{path}, {where} {number}, read as {kind}: {what}") from None
    try:
        check_sessions(requests)
    except ValueError as error:
        raise BadFile(f"{path}: {error}") from None
    lost = _settle_times(requests)
    if lost:
        notes.append(f"{len(requests) - lost} of {len(requests)} requests have no time: {lost} others lose theirs")
    if state.replaced:
        notes.append(f"payloads are sent with the run's own {', '.join(sorted(state.replaced))}")
    if state.unread:
        notes.append(f"fields that are not read: {', '.join(sorted(state.unread))}")
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


def _rows(path: Path) -> tuple[str, dict[int, Row]]:
    """What a row is called, and the rows by number: lines of JSONL, or the entries of an inputs.json."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    try:
        entries = msgspec.json.decode(content)["data"]
        return "entry", dict(enumerate(msgspec.convert(entries, list[dict[str, Any]]), start=1))
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        pass  # not one object with `data`
    rows: dict[int, Row] = {}
    for number, line in enumerate(content.split(b"\n"), start=1):
        try:
            if line.strip():
                rows[number] = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadFile(f"{path} is not JSONL with an object a line: line {number}: {error}") from None
    if not rows:
        raise BadFile(f"{path} has no requests")
    return "line", rows


def block_words(key: str, count: int) -> str:
    """Words that depend on the key alone, so that equal blocks of a trace are equal text here."""
    rng = random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big"))
    return " ".join(rng.choice(WORDS) for _ in range(count))


def _requests(row: Row, number: int, state: _Import) -> Iterator[TraceRequest]:
    """One request (text, texts, text_input, messages, payload or input_length), a conversation of `turns`, or `payloads`."""
    if "chat_id" in row:
        raise ValueError("chat_id is of Alibaba's Bailian traces: blocks of 16 tokens and seconds, which are not read")
    name = f"{state.kind}-{number}"
    if "turns" not in row and "payloads" not in row:
        yield _turn(row, name, _session(row), state, carry=_carries(row))
        return
    several = "turns" if "turns" in row else "payloads"
    lost = sorted(key for key in row if key in (*_OF_A_TURN, *_PROMPTS, *_NOT_KEPT) and row[key] is not None)
    if lost:
        raise ValueError(f"{lost[0]!r} beside {several!r} is of no turn: put it into the turns")
    state.unread.update(set(row) - _OF_A_CONVERSATION - {several})
    session = _session(row) or f"line-{number}"
    if several == "payloads":
        for place, payload in enumerate(row["payloads"]):
            yield _turn({"payload": payload}, f"{name}-{place}", session, state, carry=False)
        return
    turns: list[Row] = [{"text": turn} if isinstance(turn, str) else turn for turn in row["turns"]]
    if not turns or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError("turns must be a list of at least one text or object")
    system = []
    if len(turns) > 1 and session not in state.begun and _is_leading_system(turns[0]):
        system = [{"role": "system", "content": _text_of(turns[0])}]
    for place, turn in enumerate(turns):
        if place or not system:
            before = system if place == 1 else []
            yield _turn(turn, f"{name}-{place}", session, state, carry=True, before=before)


def _is_leading_system(turn: Row) -> bool:
    """A first turn that says something to the whole conversation, and asks for no answer of its own."""
    own = any(turn.get(name) is not None for name in ("timestamp", "delay", "output_length", "extra", *_NOT_KEPT))
    return turn.get("role") == "system" and not own and bool(_text_of(turn))


def _turn(
    row: Row, name: str, session: str | None, state: _Import, *, carry: bool, before: list[dict[str, Any]] | None = None
) -> TraceRequest:
    """One request. The trace's own words, or a word for a token where it has only lengths."""
    for field_name in _NOT_KEPT:
        if row.get(field_name):
            raise ValueError(f"{field_name!r} cannot be kept: only text is sent")
    state.unread.update(set(row) - _OF_A_CONVERSATION - _OF_A_TURN - _PROMPTS - set(_NOT_KEPT) - {"hash_ids"})
    later = session in state.begun
    if session is not None:
        state.begun.add(session)
    length = row.get("output_length") or row.get("max_tokens")
    request = TraceRequest(
        id=name,
        t=None if row.get("timestamp") is None else float(row["timestamp"]) / 1e3,
        session=session,
        max_tokens=None if length is None else max(1, int(length)),
        output_tokens=None if row.get("output_length") is None else int(row["output_length"]),
        carry_answers=carry and session is not None,
        think_s=float(row.get("delay") or 0.0) / 1e3,
    )
    params = {"tools": row["tools"]} if row.get("tools") else {}
    if row.get("payload") is not None:
        params |= _payload(dict(row["payload"]), request, state)
    elif row.get("messages") is not None:
        request.messages = [*(before or []), *row["messages"]]
    else:
        text = _text_of(row)
        if text is None:
            text = _made_text(row, name, state.seed)
            # what is before it in a conversation counts, too, and is not known
            request.num_prompt_tokens = None if before or (carry and later) else int(row["input_length"])
        request.messages = [*(before or []), {"role": row.get("role") or "user", "content": text}]
    _check_messages(request.messages)
    extra = row.get("extra") or {}
    for taken in ("messages", "prompt", *_OURS):
        if taken in extra:
            raise ValueError(f"extra has {taken!r}, which is not the turn's to say")
    request.params = {**params, **extra}
    if request.params.get("n", 1) != 1:
        raise ValueError(f"n is {request.params['n']}: one choice a request is measured")
    return request


def _check_messages(messages: Any) -> None:
    """Raises ValueError for what no chat endpoint takes."""
    if messages is not None and not (messages and all(isinstance(one, dict) and "role" in one for one in messages)):
        raise ValueError("messages must be a list of at least one object with a role")


def _payload(payload: dict[str, Any], request: TraceRequest, state: _Import) -> dict[str, Any]:
    """Take prompt and length out of a ready body; returns the rest of it."""
    state.replaced.update(name for name in _OURS if payload.pop(name, None) is not None)
    request.messages, prompt = payload.pop("messages", None), payload.pop("prompt", None)
    if isinstance(prompt, str):
        request.prompt = prompt
    elif isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        request.prompt_tokens = prompt
    elif prompt is not None:
        raise ValueError("the payload's prompt is neither one text nor one list of tokens")
    if request.messages is None and prompt is None:
        raise ValueError("the payload has neither messages nor prompt: only chat and completions are sent")
    if "max_completion_tokens" not in payload and payload.get("max_tokens") is not None:
        request.max_tokens = int(payload.pop("max_tokens"))
    elif "max_completion_tokens" in payload:
        request.max_tokens = None  # as recorded, under its own name
    return payload


def _made_text(row: Row, name: str, seed: int) -> str:
    """Text of `input_length` words; requests that share leading hash_ids (one per 512 tokens) share leading text."""
    length, ids = int(row["input_length"]), list(row.get("hash_ids") or [])
    if ids and not length // MOONCAKE_BLOCK <= len(ids) <= -(-length // MOONCAKE_BLOCK):
        raise ValueError(
            f"{len(ids)} hash_ids for {length} tokens are not blocks of {MOONCAKE_BLOCK} tokens: this is no Mooncake trace, "
            "and its times may not be milliseconds"
        )
    pieces = []
    for place, hash_id in enumerate(ids):
        pieces.append(block_words(f"{seed}:{hash_id}", min(MOONCAKE_BLOCK, length - place * MOONCAKE_BLOCK)))
    rest = length - MOONCAKE_BLOCK * len(ids)
    if rest > 0:
        pieces.append(block_words(f"{seed}:{name}", rest))
    return " ".join(pieces)


def _carries(row: Row) -> bool:
    """Whether a row of its own brings only what is new in its session.

    AIPerf: rows of text or texts and payloads are whole; messages are, unless message_mode is delta; text_input and lengths
    are what is new, unless context_mode says otherwise.
    """
    mode, context = row.get("message_mode") or "history", row.get("context_mode")
    if mode not in ("history", "delta"):
        raise ValueError(f"message_mode is {mode!r}; known: history, delta")
    if mode == "delta" and row.get("messages") is None:
        raise ValueError("message_mode delta needs messages")
    if context is not None and context not in _CARRIES:
        raise ValueError(f"context_mode is {context!r}; known: {', '.join(_CARRIES)}")
    if row.get("messages") is not None:
        carries = mode == "delta"
    elif row.get("payload") is not None or _text_of(row, "text", "texts") is not None:
        carries = False
    else:
        return True if context is None else _CARRIES[context]
    if context is not None and _CARRIES[context] != carries:
        raise ValueError(f"context_mode {context} is not what the row's other fields say")
    return carries


def _text_of(row: Row, *names: str) -> str | None:
    """The row's own words, joined by line ends; None: it has none."""
    for name in names or ("text", "texts", "text_input"):
        if row.get(name) is not None:
            texts = [row[name]] if isinstance(row[name], str) else row[name]
            return "\n".join(text if isinstance(text, str) else "\n".join(text["contents"]) for text in texts)
    return None


def _session(row: Row) -> str | None:
    name = row.get("session_id")
    name = row.get("conversation_id") if name is None else name
    return None if name is None else str(name)
