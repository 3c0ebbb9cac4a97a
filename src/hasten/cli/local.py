"""A model in this process, one answer at a time, for `hasten generate` and `hasten chat`."""

from __future__ import annotations

import dataclasses
import queue
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from hasten.cli.answer import Answer, Message
from hasten.config import EngineConfig
from hasten.engine.build import load_engine
from hasten.engine.ledger import split_head
from hasten.errors import HastenError
from hasten.request import EngineRequest, FinishReason, Ledger, SamplingParams, TokenEvent
from hasten.tokenizer.text_stream import TextStream
from hasten.weights.registry import ResolvedModel


class LocalModel:
    """Loads a model and starts its engine. Raises: what `load_engine` raises."""

    def __init__(self, found: ResolvedModel, config: EngineConfig, *, chat_template: str | None = None) -> None:
        self.name = found.name
        self._chat_template = chat_template
        self._loaded = load_engine(found.path, config)
        self._events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
        self._loaded.engine.start(self._on_events)

    def close(self) -> None:
        self._loaded.close()

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None or self._loaded.checkpoint.tokenizer.chat_template is not None

    def reply(self, messages: Sequence[Message], sampling: Mapping[str, Any]) -> Generator[str, None, Answer]:
        """See Talker."""
        arrival_s = time.monotonic()
        text = self._loaded.tokenizer.render_chat(messages, template=self._chat_template)
        # the template writes every special token itself
        return self._answer(text, sampling, arrival_s, add_special_tokens=False)

    def complete(self, text: str, sampling: Mapping[str, Any]) -> Generator[str, None, Answer]:
        """Go on from `text` as it is; otherwise as `reply`."""
        return self._answer(text, sampling, time.monotonic(), add_special_tokens=True)

    def _answer(
        self, text: str, sampling: Mapping[str, Any], arrival_s: float, *, add_special_tokens: bool
    ) -> Generator[str, None, Answer]:
        loaded = self._loaded
        token_ids = tuple(loaded.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        params = SamplingParams(**{**loaded.checkpoint.generation_defaults, **sampling})
        params = loaded.engine.resolve(params, len(token_ids))
        tokenize_ms = (time.monotonic() - arrival_s) * 1e3
        stream = TextStream(loaded.tokenizer, stop=params.stop)
        eos_token_ids = () if params.ignore_eos else loaded.tokenizer.eos_token_ids
        request_id = loaded.engine.submit(EngineRequest(token_ids, params, eos_token_ids, arrival_s))
        last: TokenEvent | None = None
        stopped = False
        try:
            while last is None:
                event = self._events.get()
                last = event if event.finish_reason is not None else None
                if not event.token_ids or stopped:
                    continue
                delta = stream.push(event.token_ids, ends_with_stop_token=event.stop_token_id is not None)
                if delta.text:
                    yield delta.text
                stopped = stream.stopped_by is not None
                if stopped and last is None:
                    loaded.engine.cancel(request_id)
        finally:
            if last is None:
                self._abandon(request_id)
        if tail := stream.finish().text:
            yield tail
        return _answer_of(last, stream, params, len(token_ids), tokenize_ms)

    def _abandon(self, request_id: int) -> None:
        """Cancel, and read the stream to its end, so that the next answer finds it empty."""
        self._loaded.engine.cancel(request_id)
        while self._events.get().finish_reason is None:
            pass

    def _on_events(self, events: Sequence[TokenEvent]) -> None:
        """On the engine's thread."""
        for event in events:
            self._events.put(event)


def _answer_of(
    event: TokenEvent, stream: TextStream, params: SamplingParams, num_prompt_tokens: int, tokenize_ms: float
) -> Answer:
    if event.finish_reason is FinishReason.ERROR:
        raise HastenError(event.error or "the engine failed while answering")
    assert event.ledger is not None, "the last event of an answer has a ledger"
    assert event.finish_reason is not None, "the last event of an answer says why it ended"
    reason = FinishReason.STOP if stream.stopped_by is not None else event.finish_reason
    # a token past the stop string is not counted
    ledger: Ledger = dataclasses.replace(
        split_head(event.ledger, {"tokenize": tokenize_ms}), completion_tokens=stream.num_tokens
    )
    return Answer(
        text=stream.text,
        finish_reason=reason.value,
        ttft_ms=ledger.ttft_ms,
        tpot_ms=ledger.tpot_ms,
        wall_ms=ledger.wall_ms,
        prompt_tokens=num_prompt_tokens,
        completion_tokens=stream.num_tokens,
        seed=params.seed,
        ledger=ledger,
    )
