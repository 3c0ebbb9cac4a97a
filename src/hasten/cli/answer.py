"""One answer while it is written and what is known of it afterwards, the same for a local model and a server."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hasten.request import Ledger

Message = Mapping[str, str]  # role, content


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer. Times are as this process saw them; a count is None where a server does not tell it."""

    text: str
    finish_reason: str
    ttft_ms: float | None
    tpot_ms: float | None  # None below two tokens
    wall_ms: float
    prompt_tokens: int | None
    completion_tokens: int | None
    seed: int | None = None
    ledger: Ledger | None = None


class Talker(Protocol):
    """Who answers in `hasten chat`."""

    @property
    def name(self) -> str: ...

    def reply(self, messages: Sequence[Message], sampling: Mapping[str, Any]) -> Generator[str, None, Answer]:
        """Pieces of the answer as they come, then the Answer. Closing the generator stops the answer.

        Args:
            sampling: fields of SamplingParams that were asked for.
        Raises: HastenError.
        """
        ...

    def close(self) -> None: ...


def timing_line(answer: Answer) -> str:
    """ "TTFT 35 ms · TPOT 6.1 ms · 12 prompt + 40 answer tokens · 0.31 s · stop" """
    parts = []
    if answer.ttft_ms is not None:
        parts.append(f"TTFT {_ms(answer.ttft_ms)}")
    if answer.tpot_ms is not None:
        parts.append(f"TPOT {_ms(answer.tpot_ms)}")
    if answer.prompt_tokens is not None and answer.completion_tokens is not None:
        parts.append(f"{answer.prompt_tokens} prompt + {answer.completion_tokens} answer tokens")
    return " · ".join([*parts, f"{answer.wall_ms / 1e3:.2f} s", answer.finish_reason])


def _ms(value: float) -> str:
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"
