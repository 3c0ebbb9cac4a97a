"""One request as the engine sees it, from submit to its last event."""

from __future__ import annotations

from hasten.engine import ledger
from hasten.engine.ledger import Timeline
from hasten.request import EngineRequest, FinishReason, Ledger, RequestId, TokenEvent, TokenLogprobs
from hasten.scheduler.plan import ChunkResult, ScheduledChunk


class LiveRequest:
    """Counts a request's tokens, knows when it ends, keeps its times."""

    def __init__(self, request_id: RequestId, request: EngineRequest, arrival_s: float) -> None:
        assert request.sampling.max_tokens is not None
        self.request_id = request_id
        self.request = request
        self.arrival_s = arrival_s
        self.timeline = Timeline(arrival_s)
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_output_tokens = 0
        self.num_preemptions = 0
        self.prompt_is_counted = False
        self._max_tokens = request.sampling.max_tokens
        eos = () if request.sampling.ignore_eos else request.eos_token_ids
        self._stop_ids = frozenset(eos) | frozenset(request.sampling.stop_token_ids)
        # the first token has no logprob; the list is None when not asked for or already handed out
        self._prompt_logprobs: list[TokenLogprobs] | None = None
        if request.sampling.prompt_logprobs is not None:
            self._prompt_logprobs = [TokenLogprobs(request.prompt_token_ids[0], None)]
        self._first_token_s: float | None = None
        self._last_token_s = 0.0
        self._steps: dict[str, int] = {}

    @property
    def needs_no_step(self) -> bool:
        """Nothing to draw and nothing to say about the prompt."""
        return self._max_tokens == 0 and self._prompt_logprobs is None

    def scheduled(self, step_id: int, now_s: float) -> None:
        """A step with a chunk of this request begins."""
        self._steps.setdefault("first_scheduled", step_id)
        if self.timeline.name in (ledger.QUEUE, ledger.PREEMPTED):
            self.timeline.enter(ledger.PREFILL, now_s)

    def preempted(self, now_s: float) -> None:
        self.num_preemptions += 1
        self.timeline.enter(ledger.PREEMPTED, now_s)

    def accept(self, chunk: ScheduledChunk, result: ChunkResult, *, step_id: int, now_s: float, shared: bool) -> TokenEvent:
        """Take in what a chunk gave: the tokens that count, and the reason if it is over (the ledger is not there yet)."""
        self.timeline.add_chunk(chunk.num_tokens, shared=shared)
        if result.error is not None:
            return TokenEvent(self.request_id, finish_reason=FinishReason.ERROR, error=result.error)
        self._keep_prompt_logprobs(chunk, result.prompt_logprobs)
        end = chunk.start + chunk.num_tokens
        if end < self.num_prompt_tokens + self.num_output_tokens:
            return TokenEvent(self.request_id)  # more of the prompt (or of a recomputed answer) is to come
        if not result.token_ids and self._max_tokens > 0:
            error = f"step {step_id} drew no token for this request"
            return TokenEvent(self.request_id, finish_reason=FinishReason.ERROR, error=error)
        token_ids, reason, stop_token_id = self._cut(result.token_ids)
        self._note_tokens(len(token_ids), step_id, now_s)
        return TokenEvent(
            self.request_id,
            token_ids,
            result.logprobs[: len(token_ids)],
            self._take_prompt_logprobs(),
            reason,
            stop_token_id,
        )

    def finish(self, now_s: float) -> Ledger:
        """The ledger; the request is over."""
        parts = self.timeline.finish(now_s)
        first_s, gaps = self._first_token_s, self.num_output_tokens - 1
        return Ledger(
            id=self.request.public_id or str(self.request_id),
            wall_ms=parts[-1].start_ms + parts[-1].ms,
            ttft_ms=None if first_s is None else (first_s - self.arrival_s) * 1e3,
            tpot_ms=None if first_s is None or gaps < 1 else (self._last_token_s - first_s) * 1e3 / gaps,
            prompt_tokens=self.num_prompt_tokens,
            cached_tokens=0,
            completion_tokens=self.num_output_tokens,
            parts=parts,
            steps=dict(self._steps),
            num_preemptions=self.num_preemptions,
        )

    def _cut(self, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None, int | None]:
        """Tokens up to the one that ends the answer, why it ends, and the end token if that is why."""
        if self._max_tokens == 0:
            return (), FinishReason.LENGTH, None
        for count, token_id in enumerate(token_ids, start=1):
            if token_id in self._stop_ids:
                return token_ids[:count], FinishReason.STOP, token_id
            if self.num_output_tokens + count >= self._max_tokens:
                return token_ids[:count], FinishReason.LENGTH, None
        return token_ids, None, None

    def _note_tokens(self, num_tokens: int, step_id: int, now_s: float) -> None:
        if num_tokens == 0:
            return
        self.num_output_tokens += num_tokens
        self._steps.setdefault("first_token", step_id)
        self._steps["last_token"] = step_id
        self._last_token_s = now_s
        if self._first_token_s is None:
            self._first_token_s = now_s
        self.timeline.enter(ledger.DECODE, now_s)

    def _keep_prompt_logprobs(self, chunk: ScheduledChunk, entries: tuple[TokenLogprobs, ...]) -> None:
        if self._prompt_logprobs is None:
            return
        # entry i is for position start + 1 + i; a recomputed chunk says some of them again
        self._prompt_logprobs.extend(entries[max(0, len(self._prompt_logprobs) - 1 - chunk.start) :])

    def _take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        entries, self._prompt_logprobs = self._prompt_logprobs, None
        return tuple(entries or ())
