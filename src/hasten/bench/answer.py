"""What one streamed chunk of an OpenAI-compatible server means for a clock: is there a token in it?"""

from __future__ import annotations

from typing import Any

import msgspec

from hasten.bench.record import RequestRecord
from hasten.bench.sse import SseParser


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[dict[str, Any]] | None = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Event)


def _tool_chars(calls: list[dict[str, Any]]) -> int:
    total = 0
    for call in calls:
        function = call.get("function") or {}
        total += len(function.get("name") or "") + len(function.get("arguments") or "")
    return total


def _chars(choice: _Choice) -> tuple[int, str]:
    """Characters the model wrote in this choice, and the part that is answer text."""
    if choice.text:
        return len(choice.text), choice.text if isinstance(choice.text, str) else ""
    delta = choice.delta
    if delta is None:
        return 0, ""
    chars, text = 0, ""
    if delta.content:
        chars, text = len(delta.content), delta.content if isinstance(delta.content, str) else ""
    for value in (delta.reasoning_content, delta.reasoning, delta.refusal):
        if value:
            chars += len(value)
            break  # some servers send the same reasoning under two names
    if delta.tool_calls:
        chars += _tool_chars(delta.tool_calls)
    return chars, text


def error_words(error: Any) -> str:
    """The message of an `error` object as OpenAI writes it; whatever else a server sent, as it is."""
    message = error.get("message") if isinstance(error, dict) else None
    return str(error if message is None else message)


class AnswerReader:
    """Fills a RequestRecord from the body of a streamed answer, one piece at a time.

    `done` turns true at [DONE]: what the server does with the connection afterwards is no part of the answer.
    """

    __slots__ = ("_keep_text", "_sse", "done", "record", "text")

    def __init__(self, record: RequestRecord, *, keep_text: bool) -> None:
        self.record = record
        self.done = False
        self.text: list[str] = []
        self._keep_text = keep_text
        self._sse = SseParser()

    def feed(self, data: bytes, now_ns: int) -> None:
        for payload in self._sse.feed(data):
            if payload == b"[DONE]":
                self.done = True
                if not self.record.finish_ns:
                    self.record.finish_ns = now_ns
            elif not self.done:
                self._event(payload, now_ns)

    def _event(self, payload: bytes, now_ns: int) -> None:
        record = self.record
        try:
            event = _DECODER.decode(payload)
            written = [_chars(choice) for choice in event.choices]
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, AttributeError):  # not JSON, or of another shape
            record.num_garbage += 1
            if record.error is None:
                record.error = "garbage"
                record.error_detail = f"an event is not a chunk: {payload[:120]!r}"
            return
        if event.error is not None:
            record.error = "stream_error"
            record.error_detail = error_words(event.error)[:300]
        chars = sum(count for count, _ in written)
        for choice, (_, text) in zip(event.choices, written, strict=True):
            if text and self._keep_text:
                self.text.append(text)
            if choice.finish_reason:  # some servers send "" in every chunk before the last
                record.finish_reason = choice.finish_reason
                if not record.finish_ns:
                    record.finish_ns = now_ns
        usage = event.usage
        if chars:
            record.chunk_ns.append(now_ns)
            record.chunk_chars.append(chars)
            if usage is not None and usage.completion_tokens is not None:
                record.chunk_tokens.append(usage.completion_tokens)
        elif event.choices:
            record.num_empty_chunks += 1
        if usage is not None:
            self._usage(usage)

    def _usage(self, usage: _Usage) -> None:
        record = self.record
        if usage.completion_tokens is not None:
            record.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens is not None:
            record.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def end(self, now_ns: int) -> None:
        """The body is over: decide what a body without [DONE] means."""
        record = self.record
        if self.done or record.error is not None:
            return
        if record.finish_reason is None:
            record.error = "truncated"
            record.error_detail = f"the body ended after {len(record.chunk_ns)} chunks without finish_reason or [DONE]"
        elif not record.finish_ns:
            record.finish_ns = now_ns
