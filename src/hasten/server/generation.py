"""The choices of one job at the engine: submit, follow, turn tokens into text, stop, cancel."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from hasten.engine.ledger import extend, split_head
from hasten.errors import EngineStopped, HastenError
from hasten.request import EngineRequest, FinishReason, Ledger, RequestId, TokenEvent, TokenLogprobs
from hasten.server.job import Job, Prompt
from hasten.server.state import ServerState
from hasten.tokenizer.text_stream import TextDelta, TextStream, TokenText, token_text

ENTRIES_PER_SLICE = 100  # of a prompt's logprobs: about 1 ms


@dataclass(slots=True)
class Piece:
    """What is new of one choice since the last look: any number of steps, taken together."""

    index: int
    text: str = ""
    logprobs: list[TokenText] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.logprobs and self.finish_reason is None


class Choice:
    """One answer to one prompt while it is written."""

    def __init__(self, index: int, prompt: Prompt, job: Job, state: ServerState) -> None:
        self.index = index
        self.prompt = prompt
        self.ledger: Ledger | None = None
        self.finish_reason: FinishReason | None = None
        self.error: HastenError | None = None
        self.last_event_s = 0.0  # when tokens last came; 0: none yet
        self._echo_offset = len(prompt.text) if job.echo else 0
        self._tokenizer = state.tokenizer
        self._text = TextStream(state.tokenizer, stop=job.stop_matcher or ())
        self._piece = Piece(index, text=prompt.text if job.echo else "")

    @property
    def num_tokens(self) -> int:
        return self._text.num_tokens

    @property
    def is_stopped(self) -> bool:
        """A stop string was found: nothing after it counts."""
        return self._text.stopped_by is not None

    def push(self, event: TokenEvent) -> int:
        """Take an event's tokens; how many of them count."""
        if not event.token_ids or self.is_stopped:
            return 0
        ends = event.stop_token_id is not None
        delta = self._text.push(event.token_ids, event.logprobs, ends_with_stop_token=ends)
        self._add(delta)
        return delta.num_tokens

    async def add_prompt(self, prompt_logprobs: Sequence[TokenLogprobs]) -> None:
        """Take the entries of the prompt's tokens, with offsets into its text. There may be many: the loop runs between."""
        skipped = self._tokenizer.special_token_ids
        stream = TextStream(self._tokenizer, skip_special_tokens=False)
        offset = 0
        for i, logprobs in enumerate(prompt_logprobs):
            entry = token_text(self._tokenizer, logprobs, text_offset=min(offset, self._echo_offset))
            self._piece.logprobs.append(entry)
            # a control token that the tokenizer added has no place in the client's text
            in_text = logprobs.token_id not in skipped or entry.text in self.prompt.text
            offset += len(stream.push((logprobs.token_id,)).text) if in_text else 0
            if i % ENTRIES_PER_SLICE == ENTRIES_PER_SLICE - 1:
                await asyncio.sleep(0)

    def finish(self, reason: FinishReason) -> None:
        """The engine is done with it."""
        self._add(self._text.finish())
        self.finish_reason = FinishReason.STOP if self.is_stopped else reason
        self._piece.finish_reason = self.finish_reason

    def take(self) -> Piece:
        """What is new, which then is old."""
        piece, self._piece = self._piece, Piece(self.index)
        return piece

    def _add(self, delta: TextDelta) -> None:
        self._piece.text += delta.text
        for entry in delta.logprobs:
            self._piece.logprobs.append(dataclasses.replace(entry, text_offset=entry.text_offset + self._echo_offset))


class Generation:
    """All choices of a job. `start`, then `pieces` or `whole`; `abandon` when nobody waits any more.

    A task per choice follows the engine's stream to its last event whatever happens, so nothing is left behind there.
    """

    def __init__(self, state: ServerState, job: Job) -> None:
        self.state = state
        self.job = job
        self.choices = [
            Choice(p * len(job.seeds) + i, prompt, job, state)
            for p, prompt in enumerate(job.prompts)
            for i in range(len(job.seeds))
        ]
        self._ids: list[RequestId] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._abandoned = False

    async def start(self) -> None:
        """Queue every choice. Raises what submit raises; then none is left queued."""
        self.state.check_accepting()
        try:
            for choice in self.choices:
                request_id = await self.state.client.submit(self._request(choice))
                self._ids.append(request_id)
                self._tasks.append(asyncio.create_task(self._follow(choice, request_id)))
                await asyncio.sleep(0)  # there may be 128, and others want the loop
                if self._abandoned:
                    return
            limit = self.state.resolve(self.job.sampling, len(self.job.prompts[0].token_ids)).max_tokens
            self.state.metrics.accepted(len(self.job.seeds), limit or 0)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """The client is gone: cancel what runs. Idempotent."""
        self._abandoned = True
        for request_id, choice in zip(self._ids, self.choices, strict=False):
            if choice.finish_reason is None:
                self.state.client.cancel(request_id)
        self._changed.set()

    @property
    def is_abandoned(self) -> bool:
        return self._abandoned

    @property
    def is_finished(self) -> bool:
        return all(choice.finish_reason is not None for choice in self.choices)

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """What became ready together, until every choice has ended. Ends early when abandoned.

        Raises: HastenError when a choice failed; what was not taken before is lost.
        """
        while not self._abandoned:
            await self._changed.wait()
            self._changed.clear()
            finished = self.is_finished
            error = next((choice.error for choice in self.choices if choice.error is not None), None)
            if error is not None:
                self.abandon()
                raise error
            pieces = [piece for choice in self.choices if not (piece := choice.take()).is_empty]
            if pieces:
                yield pieces
            if finished:
                return

    async def whole(self) -> None:
        """Wait for the end, or for being abandoned. Raises: HastenError when a choice failed."""
        while not self._abandoned and not self.is_finished:
            await self._changed.wait()
            self._changed.clear()
            for choice in self.choices:
                if choice.error is not None:
                    self.abandon()
                    raise choice.error

    def ledgers(self) -> list[Ledger]:
        """Where the time went, one a choice, up to now; kept for /explain. Empty unless all have ended."""
        wall_ms = (time.monotonic() - self.job.arrival_s) * 1e3
        ledgers = [
            extend(split_head(choice.ledger, self.job.spans_ms), "deliver", wall_ms)
            for choice in self.choices
            if choice.ledger is not None
        ]
        if len(ledgers) < len(self.choices):
            return []
        self.state.ledgers.add(self.job.public_id, self.job.client_key, ledgers, client_word=self.job.client_word)
        return ledgers

    def _request(self, choice: Choice) -> EngineRequest:
        job = self.job
        seed = job.seeds[choice.index % len(job.seeds)]
        sampling = dataclasses.replace(job.sampling, seed=seed)
        return EngineRequest(
            prompt_token_ids=choice.prompt.token_ids,
            sampling=self.state.resolve(sampling, len(choice.prompt.token_ids)),
            eos_token_ids=job.eos_token_ids,
            arrival_s=job.arrival_s,
            public_id=job.public_id if len(self.choices) == 1 else f"{job.public_id}-{choice.index}",
        )

    async def _follow(self, choice: Choice, request_id: RequestId) -> None:
        """Read one choice's events to the last."""
        try:
            async for event in self.state.client.stream(request_id):
                if event.prompt_logprobs:
                    await choice.add_prompt(event.prompt_logprobs)
                self._take(choice, request_id, event)
                self._changed.set()
            if choice.finish_reason is None:
                raise EngineStopped("the engine ended the answer without saying why")
        except Exception as error:
            choice.error = error if isinstance(error, HastenError) else HastenError(f"the answer failed: {error}")
            if choice.finish_reason is None:
                choice.finish_reason = FinishReason.ERROR
                self._count(choice)
            self.state.client.cancel(request_id)
            self._changed.set()
            if not isinstance(error, HastenError):
                raise

    def _take(self, choice: Choice, request_id: RequestId, event: TokenEvent) -> None:
        was_stopped = choice.is_stopped
        num_tokens = choice.push(event)
        if num_tokens:
            self._measure(choice, num_tokens)
        if choice.is_stopped and not was_stopped and event.finish_reason is None:
            self.state.client.cancel(request_id)
        if event.finish_reason is not None:
            self._finish(choice, event, event.finish_reason)

    def _finish(self, choice: Choice, event: TokenEvent, reason: FinishReason) -> None:
        choice.finish(reason)
        assert choice.finish_reason is not None
        if event.ledger is not None:
            # the engine may have drawn a token past the stop string: it is not counted
            choice.ledger = dataclasses.replace(event.ledger, completion_tokens=choice.num_tokens)
        if choice.finish_reason is FinishReason.ERROR:
            choice.error = HastenError(event.error or "the engine failed while answering")
        elif choice.finish_reason is FinishReason.CANCELLED and not self._abandoned:
            choice.error = EngineStopped("the server is shutting down and could not finish this answer")
        self._count(choice)
        if self.is_finished and (self._abandoned or any(other.error for other in self.choices)):
            self.ledgers()  # nobody will ask for them, but /explain is there for just those that went wrong

    def _count(self, choice: Choice) -> None:
        assert choice.finish_reason is not None
        self.state.metrics.finished(
            choice.finish_reason,
            e2e_s=time.monotonic() - self.job.arrival_s,
            ledger=choice.ledger,
            num_prompt_tokens=len(choice.prompt.token_ids),
            num_tokens=choice.num_tokens,
        )

    def _measure(self, choice: Choice, num_tokens: int) -> None:
        now_s = time.monotonic()
        if choice.last_event_s:
            self.state.metrics.next_tokens(now_s - choice.last_event_s, num_tokens)
        else:
            self.state.metrics.first_token(now_s - self.job.arrival_s)
        choice.last_event_s = now_s
