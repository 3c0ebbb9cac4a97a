"""The trace: one JSONL schema for what is sent, a request a line, shared by recording, bench, diagnose and tune."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hasten.errors import BadFile


class TraceRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request of a trace.

    Exactly one of `messages` (chat), `prompt` (text) and `prompt_tokens` (token ids) is set. `t` is the send time in
    seconds since the start of the trace; `session` groups the turns of one conversation, which never overlap. `params`
    goes into the body as it is. `output_tokens` is what the recorded answer had; `expect` and `answer` are for quality
    tools and not sent. `num_prompt_tokens` is the length that was asked for, where the maker of the trace knows it.
    `carry_answers`: `messages` are only what is new in this turn of the session, and the server's own answers are woven in
    between. `think_s`: seconds after the answer before, at the least.
    """

    id: str = ""
    t: float | None = None
    session: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    prompt_tokens: list[int] | None = None
    documents: list[Any] | None = None
    max_tokens: int | None = None
    params: dict[str, Any] = {}
    expect: Any = None
    answer: str | None = None
    output_tokens: int | None = None
    num_prompt_tokens: int | None = None
    carry_answers: bool = False
    think_s: float = 0.0

    def check(self) -> None:
        """Raises ValueError saying which field is wrong."""
        given = [name for name in ("messages", "prompt", "prompt_tokens") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of messages, prompt, prompt_tokens is needed, got {given or 'none'}")
        if self.t is not None and not 0 <= self.t < float("inf"):
            raise ValueError(f"t is {self.t}, it must be seconds since the start, 0 or more")
        if not 0 <= self.think_s < float("inf"):
            raise ValueError(f"think_s is {self.think_s}, it must be seconds, 0 or more")
        if self.carry_answers and (self.messages is None or self.session is None):
            raise ValueError("carry_answers needs messages and a session")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, it must be at least 1")


def read_trace(path: Path) -> list[TraceRequest]:
    """Requests in order of `t` (file order where there is none). Raises BadFile naming the line."""
    decoder = msgspec.json.Decoder(TraceRequest)
    requests: list[TraceRequest] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    request = decoder.decode(line)
                    request.check()
                except (msgspec.MsgspecError, ValueError) as error:
                    raise BadFile(f"{path}, line {number}: {error}") from None
                if not request.id:
                    request.id = f"{number}"
                requests.append(request)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    if not requests:
        raise BadFile(f"{path} has no requests")
    timed = sum(request.t is not None for request in requests)
    if timed not in (0, len(requests)):
        raise BadFile(f"{path}: {timed} of {len(requests)} requests have t; give it to all or to none")
    if timed:
        requests.sort(key=lambda request: request.t or 0.0)
    try:
        check_sessions(requests)
    except ValueError as error:
        raise BadFile(f"{path}: {error}") from None
    return requests


def check_sessions(requests: Sequence[TraceRequest]) -> None:
    """Raises ValueError if some turns of a session carry answers and others do not."""
    carry: dict[str, bool] = {}
    for request in requests:
        if request.session is not None and carry.setdefault(request.session, request.carry_answers) != request.carry_answers:
            raise ValueError(
                f"session {request.session!r} has turns with what is new (carry_answers) and turns with the whole conversation"
            )


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    encoder = msgspec.json.Encoder()
    with path.open("wb") as out:
        for request in requests:
            out.write(encoder.encode(request) + b"\n")


class Job(msgspec.Struct):
    """Requests that follow each other: one, or the turns of a conversation.

    carry_answers: each turn's `messages` are only what is new; the server's own answers are woven in between.
    """

    turns: Sequence[TraceRequest]
    carry_answers: bool = False
    think_s: float = 0.0


def jobs_of_trace(requests: Sequence[TraceRequest]) -> list[Job]:
    """Group by session, in order of first appearance; requests without one stand alone."""
    sessions: dict[str, list[TraceRequest]] = {}
    jobs: list[Job] = []
    for request in requests:
        if request.session is None:
            jobs.append(Job([request]))
        elif request.session in sessions:
            sessions[request.session].append(request)
        else:
            sessions[request.session] = [request]
            jobs.append(Job(sessions[request.session], request.carry_answers))
    return jobs
