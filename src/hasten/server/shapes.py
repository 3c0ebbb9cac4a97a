"""A job's results in OpenAI's two shapes: chat and text completions, whole and as events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from hasten.request import FinishReason, Ledger
from hasten.server.generation import Choice, Generation, Piece
from hasten.server.job import Job
from hasten.server.protocol import (
    Answer,
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    CompletionLogprobs,
    Delta,
    HastenAnswer,
    PromptTokensDetails,
    TextChoice,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from hasten.tokenizer.text_stream import TokenText, TopToken

# JSON has no infinity; OpenAI writes this for "never"
MIN_LOGPROB = -9999.0


class Shape(Protocol):
    """One endpoint's way of writing results."""

    whole_object: str
    chunk_object: str

    def whole(self, piece: Piece, finish_reason: str) -> Any:
        """The choice, complete."""
        ...

    def opening(self, index: int) -> Any | None:
        """The first event of a choice, before any text."""
        ...

    def chunk(self, piece: Piece) -> Any:
        """An event with text."""
        ...

    def closing(self, index: int, finish_reason: str) -> Any:
        """The last event of a choice."""
        ...


class ChatShape:
    """/v1/chat/completions."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, job: Job) -> None:
        self._with_logprobs = job.sampling.logprobs is not None

    def whole(self, piece: Piece, finish_reason: str) -> ChatChoice:
        return ChatChoice(piece.index, AssistantMessage(piece.text), self._logprobs(piece), finish_reason)

    def opening(self, index: int) -> ChatChunkChoice:
        return ChatChunkChoice(index, Delta(role="assistant", content=""))

    def chunk(self, piece: Piece) -> ChatChunkChoice:
        return ChatChunkChoice(piece.index, Delta(content=piece.text), self._logprobs(piece))

    def closing(self, index: int, finish_reason: str) -> ChatChunkChoice:
        return ChatChunkChoice(index, Delta(), None, finish_reason)

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        return ChatLogprobs([_chat_entry(token) for token in piece.logprobs]) if self._with_logprobs else None


class TextShape:
    """/v1/completions."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, job: Job) -> None:
        self._with_logprobs = job.sampling.logprobs is not None

    def whole(self, piece: Piece, finish_reason: str) -> TextChoice:
        return TextChoice(piece.index, piece.text, self._logprobs(piece), finish_reason)

    def opening(self, index: int) -> None:
        return None

    def chunk(self, piece: Piece) -> TextChoice:
        return TextChoice(piece.index, piece.text, self._logprobs(piece))

    def closing(self, index: int, finish_reason: str) -> TextChoice:
        return TextChoice(index, "", None, finish_reason)

    def _logprobs(self, piece: Piece) -> CompletionLogprobs | None:
        if not self._with_logprobs:
            return None
        tokens = piece.logprobs
        return CompletionLogprobs(
            tokens=[_spelled(token) for token in tokens],
            token_logprobs=[None if token.logprob is None else _finite(token.logprob) for token in tokens],
            top_logprobs=[_text_top(token) for token in tokens],
            text_offset=[token.text_offset for token in tokens],
        )


def whole_answer(generation: Generation, shape: Shape, fingerprint: str) -> Answer:
    """The answer to a request without `stream`; every choice has ended."""
    job = generation.job
    choices = [_whole_choice(shape, choice.take()) for choice in generation.choices]
    return Answer(
        id=job.public_id,
        object=shape.whole_object,
        created=job.created_s,
        model=job.model,
        system_fingerprint=fingerprint,
        choices=choices,
        usage=usage_of(generation.choices),
        hasten=hasten_answer(job, generation.ledgers()),
    )


def _whole_choice(shape: Shape, piece: Piece) -> Any:
    assert piece.finish_reason is not None
    return shape.whole(piece, finish_word(piece.finish_reason))


def finish_word(reason: FinishReason) -> str:
    """OpenAI's `finish_reason`; errors and cancellations are told in another way, so never come here."""
    return {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}[reason]


def usage_of(choices: Sequence[Choice]) -> Usage:
    """Tokens of all choices; a prompt that is answered several times counts once, as with OpenAI."""
    prompts = {id(choice.prompt): len(choice.prompt.token_ids) for choice in choices}
    cached = {id(choice.prompt): choice.ledger.cached_tokens for choice in choices if choice.ledger is not None}
    num_prompt, num_completion = sum(prompts.values()), sum(choice.num_tokens for choice in choices)
    details = PromptTokensDetails(sum(cached.values()))
    return Usage(num_prompt, num_completion, num_prompt + num_completion, details)


def hasten_answer(job: Job, ledgers: list[Ledger]) -> HastenAnswer:
    """What goes under `hasten`."""
    explain: Ledger | list[Ledger] | None = None
    if job.explain and ledgers:
        explain = ledgers[0] if len(ledgers) == 1 else ledgers
    return HastenAnswer(seed=job.seed, seeds=list(job.seeds), warnings=job.warnings, explain=explain)


def encode_event(body: msgspec.Struct) -> bytes:
    """One server-sent event: one `data:` line and a blank one."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _chat_entry(token: TokenText) -> TokenLogprob:
    top = [TopLogprob(entry.text, _finite(entry.logprob), list(entry.bytes)) for entry in token.top]
    logprob = MIN_LOGPROB if token.logprob is None else _finite(token.logprob)
    return TokenLogprob(token.text, logprob, list(token.bytes), top)


def _text_top(token: TokenText) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    entries = {_spelled(entry): _finite(entry.logprob) for entry in token.top}
    # as with OpenAI the chosen token is always among them
    entries.setdefault(_spelled(token), _finite(token.logprob))
    return entries


def _spelled(token: TokenText | TopToken) -> str:
    """A token's text; one that is only part of a character is spelled in bytes, so that names of a dict stay apart."""
    if "\ufffd" not in token.text:
        return token.text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
