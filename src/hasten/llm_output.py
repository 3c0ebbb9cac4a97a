"""What the Python API hands out, and how the events of one request become it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from hasten.engine.ledger import split_head
from hasten.errors import EngineStopped, HastenError
from hasten.request import EngineRequest, FinishReason, Ledger, TokenEvent, TokenLogprobs
from hasten.tokenizer.text_stream import TextStream, TokenText, token_text
from hasten.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Output:
    """A finished answer.

    `token_ids` are the tokens that count: an end token is among them (it has no text), tokens after a stop string are
    not. `finish_reason` is "stop" or "length". `seed` repeats the answer. `logprobs` and `prompt_logprobs` are empty
    unless asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    seed: int
    ledger: Ledger
    prompt_token_ids: tuple[int, ...]
    logprobs: tuple[TokenText, ...] = ()
    prompt_logprobs: tuple[TokenText, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What a stream gives: text that is final, with its logprobs; the last piece has the whole `output`."""

    text: str = ""
    logprobs: tuple[TokenText, ...] = ()
    output: Output | None = None


@dataclass(slots=True)
class Answer:
    """Puts the events of one request together."""

    tokenizer: Tokenizer
    request: EngineRequest
    text_stream: TextStream
    tokenize_ms: float
    logprobs: list[TokenText] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def is_stopped(self) -> bool:
        """A stop string is complete: what the engine still draws does not count."""
        return self.text_stream.stopped_by is not None

    def add(self, event: TokenEvent) -> Piece:
        """Raises HastenError if the request failed, EngineStopped if it was cancelled from outside."""
        self.prompt_logprobs = event.prompt_logprobs or self.prompt_logprobs
        ends_with_stop_token = event.stop_token_id is not None and bool(event.token_ids)
        delta = self.text_stream.push(event.token_ids, event.logprobs, ends_with_stop_token=ends_with_stop_token)
        text, logprobs = delta.text, delta.logprobs
        if event.finish_reason is None:
            self.logprobs += logprobs
            return Piece(text, logprobs)
        if event.finish_reason is FinishReason.ERROR:
            raise HastenError(event.error)
        if event.finish_reason is FinishReason.CANCELLED and not self.is_stopped:
            raise EngineStopped("the request was cancelled: the engine is closing")
        rest = self.text_stream.finish()
        text, logprobs = text + rest.text, logprobs + rest.logprobs
        self.logprobs += logprobs
        return Piece(text, logprobs, self._output(event))

    def _output(self, event: TokenEvent) -> Output:
        assert event.finish_reason is not None
        assert event.ledger is not None
        assert self.request.sampling.seed is not None
        ledger = split_head(event.ledger, {"tokenize": self.tokenize_ms})
        return Output(
            text=self.text_stream.text,
            token_ids=tuple(self.text_stream.token_ids),
            finish_reason=FinishReason.STOP.value if self.is_stopped else event.finish_reason.value,
            seed=self.request.sampling.seed,
            ledger=dataclasses.replace(ledger, completion_tokens=self.text_stream.num_tokens),
            prompt_token_ids=self.request.prompt_token_ids,
            logprobs=tuple(self.logprobs),
            prompt_logprobs=tuple([token_text(self.tokenizer, entry) for entry in self.prompt_logprobs]),
        )
