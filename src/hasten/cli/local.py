"""A model in this process, one answer at a time, for `hasten generate` and `hasten chat`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from typing import Any, cast

from hasten.cli.answer import Answer, Message
from hasten.cli.interrupts import Interrupts
from hasten.cli.terminal import waiting
from hasten.config import EngineConfig
from hasten.engine.build import load_engine
from hasten.llm import AsyncLLM
from hasten.llm_output import Output, Piece
from hasten.request import SamplingParams
from hasten.weights.registry import ResolvedModel


class LocalModel:
    """Loads a model. Raises: what `load_engine` raises.

    The event loop runs in this thread, and only while somebody waits for a piece. Ctrl-C meanwhile cancels the request; the
    KeyboardInterrupt comes when the loop has stopped, never inside of it.
    """

    def __init__(self, found: ResolvedModel, config: EngineConfig) -> None:
        self.name = found.name
        with waiting(f"loading {found.path}"):
            self._llm = AsyncLLM.on(load_engine(found.path, config))
        self._runner = asyncio.Runner()
        self._interrupts = Interrupts()

    def close(self) -> None:
        with self._runner:
            self._runner.run(self._llm.aclose())

    @property
    def has_chat_template(self) -> bool:
        return self._llm.loaded.checkpoint.tokenizer.chat_template is not None

    def reply(self, messages: Sequence[Message], sampling: Mapping[str, Any]) -> Generator[str, None, Answer]:
        """See Talker."""
        return self._answer(self._llm.stream_chat(messages, self._params(sampling)))

    def complete(self, text: str, sampling: Mapping[str, Any]) -> Generator[str, None, Answer]:
        """Go on from `text` as it is; otherwise as `reply`."""
        return self._answer(self._llm.stream(text, self._params(sampling)))

    def _params(self, sampling: Mapping[str, Any]) -> SamplingParams:
        """What was asked for, else the model's own defaults, else those of SamplingParams."""
        return SamplingParams(**{**self._llm.loaded.checkpoint.generation_defaults, **sampling})

    def _answer(self, pieces: AsyncIterator[Piece]) -> Generator[str, None, Answer]:
        output: Output | None = None
        with self._interrupts:
            try:
                while (piece := self._interrupts.run(self._runner, lambda: _next(pieces))) is not None:
                    output = piece.output
                    if piece.text:
                        yield piece.text
            finally:
                self._interrupts.run(self._runner, cast(Any, pieces).aclose, cancellable=False)
        assert output is not None, "the last piece has the output"
        return _answer_of(output)


async def _next(pieces: AsyncIterator[Piece]) -> Piece | None:
    return await anext(pieces, None)


def _answer_of(output: Output) -> Answer:
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
