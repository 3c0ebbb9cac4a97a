"""Tokens of one answer as text, piece by piece: what is released is final, and together it is what `decode` gives.

Two things are held back: bytes that may still become a character, and text that may still become a stop string. The
pieces depend on how the tokens arrive, their sum does not.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hasten.request import TokenLogprobs
from hasten.tokenizer.stop_matcher import StopMatcher
from hasten.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TopToken:
    """An alternative at a position. `text` has U+FFFD where `bytes` is only part of a character."""

    token_id: int
    text: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token with its log-probability, as OpenAI's `logprobs` wants it.

    `text_offset` is where its text starts in the answer, in characters; a token that starts inside a character has the
    offset of that character. `logprob` is None only for the first token of a prompt.
    """

    token_id: int
    text: str
    bytes: bytes
    logprob: float | None
    top: tuple[TopToken, ...]
    text_offset: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What became final. `num_tokens` is how many of the tokens just given count, released or not yet.

    `logprobs` has the tokens whose text was released to its end (and, at a stop string, the one that it cuts).
    """

    text: str = ""
    logprobs: tuple[TokenText, ...] = ()
    num_tokens: int = 0


def token_text(tokenizer: Tokenizer, logprobs: TokenLogprobs, *, text_offset: int = 0) -> TokenText:
    """A token's log-probabilities with texts and bytes."""

    def spelled(token_id: int) -> tuple[str, bytes]:
        data = tokenizer.token_bytes(token_id)
        return data.decode("utf-8", "replace"), data

    top = tuple(TopToken(token_id, *spelled(token_id), logprob) for token_id, logprob in logprobs.top)
    return TokenText(logprobs.token_id, *spelled(logprobs.token_id), logprobs.logprob, top, text_offset)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A token whose text is not released yet: its characters are [start, end) of the answer."""

    logprobs: TokenLogprobs
    start: int
    end: int


class TextStream:
    """Detokenizer of one answer, with stop strings. Not thread-safe.

    Invalid UTF-8 becomes U+FFFD by the rule of `Tokenizer.decode` (one for each longest wrong start). The text ends before
    the stop string that is complete first (see StopMatcher); the token that completes it is the last that counts, and
    everything pushed after it is ignored. Work is constant per character, whatever the length of the answer.

    Args:
        stop: stop strings, or a matcher made of them: many answers can share one, whose making costs more than it looks (17 ms
            for 8,192 characters). They are matched on the text: control tokens that are skipped have none.
        skip_special_tokens: leave control tokens out of the text; they count as tokens all the same.
    Raises: InvalidRequest for an empty or far too long stop string, and (push) for an id outside the vocabulary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] | StopMatcher = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self.stopped_by: str | None = None
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        if isinstance(stop, StopMatcher):
            self._matcher: StopMatcher | None = stop
        else:
            self._matcher = StopMatcher(stop) if stop else None
        self._state = 0  # of the matcher
        self._tail = b""  # the start of a character
        self._held: list[str] = []  # decoded, not released
        self._num_decoded = 0  # characters
        self._num_released = 0
        self._released: list[str] = []
        self._token_ids: list[int] = []
        self._waiting: deque[_Waiting] = deque()
        self._finished = False

    @property
    def text(self) -> str:
        """All that was released."""
        return "".join(self._released)

    @property
    def token_ids(self) -> list[int]:
        """The tokens that count: all, or up to the one that completed the stop string."""
        return list(self._token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    def push(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = (), *, ends_with_stop_token: bool = False
    ) -> TextDelta:
        """Take the next tokens; returns what they make final.

        Args:
            logprobs: aligned with token_ids, or empty.
            ends_with_stop_token: the last id is an end or stop token: it counts, but gives no text and no logprobs.
        """
        assert not logprobs or len(logprobs) == len(token_ids), "logprobs are not aligned with token_ids"
        assert not self._finished, "push after finish"
        num_before = len(self._token_ids)
        for i, token_id in enumerate(token_ids):
            if self.stopped_by is not None:
                break
            is_stop_token = ends_with_stop_token and i == len(token_ids) - 1
            start = self._num_decoded
            self._decode(b"" if is_stop_token or token_id in self._skipped else self._tokenizer.token_bytes(token_id))
            self._token_ids.append(token_id)
            if logprobs and not is_stop_token:
                # an unfinished character becomes exactly one: itself, or U+FFFD for the bytes held so far
                self._waiting.append(_Waiting(logprobs[i], start, self._num_decoded + bool(self._tail)))
        return self._release(len(self._token_ids) - num_before)

    def finish(self) -> TextDelta:
        """The answer has ended: release what was held back. An unfinished character becomes U+FFFD."""
        if not self._finished and self.stopped_by is None and self._tail:
            self._decode(b"", final=True)
        self._finished = True
        return self._release(0)

    def _decode(self, data: bytes, *, final: bool = False) -> None:
        """Append bytes, stopping at the end of the first stop string."""
        data = self._tail + data
        text, consumed = codecs.utf_8_decode(data, "replace", final)
        self._tail = data[consumed:]
        if self._tail[:1] == b"\xed" and self._tail[1:] >= b"\xa0":
            # the start of a surrogate: CPython keeps it for its "surrogatepass", but no byte can make it valid
            text, self._tail = text + "\ufffd\ufffd", b""
        if self._matcher is not None and text:
            self._state, num_read, self.stopped_by = self._matcher.feed(self._state, text)
            if self.stopped_by is not None:
                text, self._tail = text[:num_read], b""
        if text:
            self._held.append(text)
            self._num_decoded += len(text)

    def _release(self, num_tokens: int) -> TextDelta:
        end = self._num_decoded
        if self.stopped_by is not None:
            end -= len(self.stopped_by)
        elif self._matcher is not None and not self._finished:
            end -= self._matcher.depth[self._state]
        text = ""
        if end > self._num_released:
            held = "".join(self._held)
            text, rest = held[: end - self._num_released], held[end - self._num_released :]
            self._held = [rest] if rest else []
            self._released.append(text)
            self._num_released = end
        return TextDelta(text, self._release_logprobs(), num_tokens) if text or self._waiting or num_tokens else _NOTHING

    def _release_logprobs(self) -> tuple[TokenText, ...]:
        released = []
        while self._waiting:  # after a stop string some stay: they are part of it
            token = self._waiting[0]
            if token.end > self._num_released and not (self.stopped_by is not None and token.start < self._num_released):
                break
            self._waiting.popleft()
            released.append(token_text(self._tokenizer, token.logprobs, text_offset=token.start))
        return tuple(released)


_NOTHING = TextDelta()
