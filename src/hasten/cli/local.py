"""A model in this process, one answer at a time, for `hasten generate` and `hasten chat`."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, cast

from hasten.cli.answer import Answer, Message
from hasten.config import EngineConfig
from hasten.engine.build import load_engine
from hasten.llm import LLM
from hasten.llm_output import Output, Piece
from hasten.request import SamplingParams
from hasten.weights.registry import ResolvedModel


class LocalModel:
    """Loads a model. Raises: what `load_engine` raises."""

    def __init__(self, found: ResolvedModel, config: EngineConfig) -> None:
        self.name = found.name
        self._llm = LLM.on(load_engine(found.path, config))

    def close(self) -> None:
        self._llm.close()

    @property
    def has_chat_template(self) -> bool:
        return self._llm.loaded.checkpoint.tokenizer.chat_template is not None

    def reply(self, messages: Sequence[Message], sampling: Mapping[str, Any]) -> Generator[str, None, Answer]:
        """See Talker."""
        return _answer(self._llm.stream_chat(messages, self._params(sampling)))

    def complete(self, text: str, sampling: Mapping[str, Any]) -> Generator[str, None, Answer]:
        """Go on from `text` as it is; otherwise as `reply`."""
        return _answer(self._llm.stream(text, self._params(sampling)))

    def _params(self, sampling: Mapping[str, Any]) -> SamplingParams:
        """What was asked for, else the model's own defaults, else those of SamplingParams."""
        return SamplingParams(**{**self._llm.loaded.checkpoint.generation_defaults, **sampling})


def _answer(pieces: Iterator[Piece]) -> Generator[str, None, Answer]:
    output: Output | None = None
    # closed here and now: an answer that is given up must be cancelled before its model is closed
    with contextlib.closing(cast(Generator[Piece, None, None], pieces)):
        for piece in pieces:
            output = piece.output
            if piece.text:
                yield piece.text
    assert output is not None, "the last piece has the output"
    ledger = output.ledger
    return Answer(
        text=output.text,
        finish_reason=output.finish_reason,
        ttft_ms=ledger.ttft_ms,
        tpot_ms=ledger.tpot_ms,
        wall_ms=ledger.wall_ms,
        prompt_tokens=ledger.prompt_tokens,
        completion_tokens=ledger.completion_tokens,
        seed=output.seed,
        ledger=ledger,
    )
