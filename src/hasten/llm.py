"""The Python API: a model in this process, without a server."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

from hasten.config import EngineConfig
from hasten.engine.build import LoadedEngine, load_engine
from hasten.errors import EngineStopped, InvalidRequest, Unsupported
from hasten.llm_output import Answer, Output, Piece
from hasten.request import EngineRequest, RequestId, SamplingParams
from hasten.server.local_client import LocalClient
from hasten.tokenizer.text_stream import TextStream
from hasten.tokenizer.tokenizer import INLINE_CHARS, Tokenizer

__all__ = ["LLM", "AsyncLLM", "Output", "Piece"]

Prompt = str | Sequence[int]  # text, or token ids
Params = SamplingParams | Sequence[SamplingParams] | None  # for all prompts, or one for each
Message = Mapping[str, Any]  # {"role": …, "content": …}

OWN_THREADS = "hasten-"  # how the names of our threads begin, the engine's included

_T = TypeVar("_T")


class AsyncLLM:
    """A model for asyncio code; belongs to the event loop that first uses it. Loading happens here and blocks.

    Args:
        model: an alias ("smollm2"), a GGUF file, or the name of a file in the models folder.
        draft_model: must be None; drafting by a second model is not there yet.
        config: fields of EngineConfig; unknown ones raise TypeError.
    Raises: UnknownModel, ModelError, UsageError, DoesNotFit.
    """

    def __init__(self, model: str, draft_model: str | None = None, **config: Any) -> None:
        if draft_model is not None:
            raise Unsupported(f"draft_model is {draft_model!r}: drafting by a second model is not there yet, leave it out")
        from hasten.weights.registry import resolve

        engine_config = EngineConfig(**config)
        self._own(load_engine(resolve(model, fetch=True).path, engine_config))

    @classmethod
    def on(cls, loaded: LoadedEngine) -> Self:
        """On an engine that was loaded before (`hasten.engine.build.load_engine`); closed with this object."""
        llm = cls.__new__(cls)
        llm._own(loaded)
        return llm

    def _own(self, loaded: LoadedEngine) -> None:
        self.loaded = loaded
        self._client = LocalClient(loaded.engine)
        self._close_loaded = weakref.finalize(self, loaded.close)  # also at exit, while threads can still end

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Output:
        """The whole answer to one prompt. `params` None: the model's own defaults, then those of SamplingParams.

        Raises: InvalidRequest, PromptTooLong, EngineStopped.
        """
        return await _last(self.stream(prompt, params))

    async def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Output:
        """The whole answer to a conversation. Raises TemplateError as well."""
        return await _last(self.stream_chat(messages, params))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Piece]:
        """Pieces of the answer as they become final, the last with `output`. Leaving early cancels the request."""

        async def token_ids() -> Sequence[int]:
            if not isinstance(prompt, str):
                return prompt
            if len(prompt) <= INLINE_CHARS:
                return self.tokenizer.encode(prompt)
            return await asyncio.to_thread(self.tokenizer.encode, prompt)

        return self._stream(token_ids, params)

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> AsyncIterator[Piece]:
        """`stream` for a conversation, by the model's chat template."""

        def rendered() -> list[int]:
            # the template writes every special token itself: none is added to it
            return self.tokenizer.encode(self.tokenizer.render_chat(messages), add_special_tokens=False)

        # in a thread whatever its length: the first conversation compiles the template
        return self._stream(lambda: asyncio.to_thread(rendered), params)

    async def _stream(
        self, prepare: Callable[[], Awaitable[Sequence[int]]], params: SamplingParams | None
    ) -> AsyncIterator[Piece]:
        """Answer the tokens that `prepare` makes; the time that takes is a part of the answer's."""
        arrival_s = time.monotonic()
        if params is None:
            defaults: Mapping[str, Any] = self.loaded.checkpoint.generation_defaults
            params = SamplingParams(**defaults)
        token_ids = tuple(await prepare())
        tokenize_ms = (time.monotonic() - arrival_s) * 1e3
        request = EngineRequest(
            prompt_token_ids=token_ids,
            sampling=self._client.resolve(params, len(token_ids)),
            eos_token_ids=self.tokenizer.eos_token_ids,
            arrival_s=arrival_s,
        )
        answer = Answer(self.tokenizer, request, TextStream(self.tokenizer, stop=params.stop), tokenize_ms)
        request_id = await self._client.submit(request)
        try:
            async for piece in self._pieces(answer, request_id):
                yield piece
        finally:
            self._client.cancel(request_id)

    async def _pieces(self, answer: Answer, request_id: RequestId) -> AsyncIterator[Piece]:
        async for event in self._client.stream(request_id):
            piece = answer.add(event)
            if answer.is_stopped:
                self._client.cancel(request_id)
            if piece.text or piece.logprobs or piece.output:
                yield piece

    async def aclose(self) -> None:
        """Cancel what runs, end the engine, free the model. Idempotent."""
        await self._client.close()
        self._close_loaded()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class LLM:
    """A model for ordinary code. Arguments and errors as for AsyncLLM. Methods may be called from several threads.

    Use it as a context manager, or call `close`.
    """

    def __init__(self, model: str, draft_model: str | None = None, **config: Any) -> None:
        self._own(AsyncLLM(model, draft_model, **config))

    @classmethod
    def on(cls, loaded: LoadedEngine) -> Self:
        """On an engine that was loaded before; closed with this object."""
        llm = cls.__new__(cls)
        llm._own(AsyncLLM.on(loaded))
        return llm

    def _own(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix=f"{OWN_THREADS}llm"))
        # a loop of our own: callers may have one running in this thread (notebooks do)
        thread = threading.Thread(target=self._loop.run_forever, name=f"{OWN_THREADS}llm", daemon=True)
        thread.start()
        self._close = weakref.finalize(self, _close_loop, llm, self._loop, thread)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._llm.tokenizer

    @property
    def loaded(self) -> LoadedEngine:
        return self._llm.loaded

    # mypy's objection: a str is also a Sequence[str]; the first overload that matches is meant
    @overload
    def generate(self, prompts: str, params: SamplingParams | None = None) -> Output: ...  # type: ignore[overload-overlap]
    @overload
    def generate(self, prompts: Sequence[str] | Sequence[Sequence[int]], params: Params = None) -> list[Output]: ...
    @overload
    def generate(self, prompts: Sequence[int], params: SamplingParams | None = None) -> Output: ...
    def generate(self, prompts: Any, params: Any = None) -> Output | list[Output]:
        """Answer one prompt (text or token ids), or a list of them, in order and all batched together.

        `params` is for all prompts, or a list of one for each. Raises on the first prompt that cannot be answered; the
        others are cancelled.
        """
        if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
            return self._run(self._llm.generate(prompts, params))
        each = _each(params, len(prompts))
        return self._run(_together([self._llm.generate(*pair) for pair in zip(prompts, each, strict=True)]))

    @overload
    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Output: ...
    @overload
    def chat(self, messages: Sequence[Sequence[Message]], params: Params = None) -> list[Output]: ...
    def chat(self, messages: Any, params: Any = None) -> Output | list[Output]:
        """Answer one conversation, or a list of conversations; otherwise as `generate`."""
        if len(messages) > 0 and isinstance(messages[0], Mapping):
            return self._run(self._llm.chat(messages, params))
        each = _each(params, len(messages))
        return self._run(_together([self._llm.chat(*pair) for pair in zip(messages, each, strict=True)]))

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Piece]:
        """Pieces of the answer as they become final, the last with `output`. Closing the iterator cancels the request."""
        return self._iterate(self._llm.stream(prompt, params))

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Iterator[Piece]:
        """`stream` for a conversation, by the model's chat template."""
        return self._iterate(self._llm.stream_chat(messages, params))

    def close(self) -> None:
        """Cancel what runs, end the engine, free the model. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _iterate(self, pieces: AsyncIterator[Piece]) -> Iterator[Piece]:
        try:
            while (piece := self._run(_next(pieces))) is not None:
                yield piece
        finally:
            if self._close.alive:  # otherwise it was cancelled with everything else
                self._run(_close_stream(pieces))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if not self._close.alive:
            work.close()
            raise EngineStopped("this LLM is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # also Ctrl-C: the request must not run on
            future.cancel()
            raise


def _each(params: Params, count: int) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidRequest(f"{count} prompts and {len(params)} SamplingParams: give one for each, or one for all")
    return params


async def _together(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _last(pieces: AsyncIterator[Piece]) -> Output:
    output = None
    async for piece in pieces:
        output = piece.output
    assert output is not None, "the stream ended without an output"
    return output


async def _next(pieces: AsyncIterator[Piece]) -> Piece | None:
    return await anext(pieces, None)


async def _close_stream(pieces: AsyncIterator[Piece]) -> None:
    generator = cast(Any, pieces)
    while generator.ag_running:  # after Ctrl-C: the cancelled step of the generator has yet to unwind
        await asyncio.sleep(0)
    await generator.aclose()


def _close_loop(llm: AsyncLLM, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """End everything and wait for it; garbage may be collected on a thread of ours, which cannot wait for itself."""
    if threading.current_thread().name.startswith(OWN_THREADS):
        threading.Thread(target=_close_loop, args=(llm, loop, thread), name="closes hasten").start()
        return
    asyncio.run_coroutine_threadsafe(llm.aclose(), loop).result()
    asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
