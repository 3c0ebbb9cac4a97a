"""What a generating request asks for, once understood: ids and parameters, nothing of HTTP or of OpenAI's spelling."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from hasten.request import MAX_SEED, SamplingParams
from hasten.tokenizer.stop_matcher import StopMatcher

# JavaScript and others read numbers as float64: a seed above this could not be sent back
MAX_DRAWN_SEED = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. `text` is what the client sent (or the text of its ids), for `echo`."""

    token_ids: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request for text: every prompt is answered `len(seeds)` times.

    `seed` is the client's or was drawn here; `seeds` has one for each choice of a prompt, the first is `seed` itself.
    `client_word` is the client's own name for the request (`X-Request-Id`), "" for none.
    `stop_matcher` has `sampling.stop`, once for all choices.
    `spans_ms` is the time spent before the engine saw it, by ledger part, from `arrival_s` (time.monotonic()) on.
    """

    public_id: str
    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    seed: int
    seeds: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    arrival_s: float
    created_s: int
    client_key: bytes = b""
    client_word: str = ""
    stream: bool = False
    include_usage: bool = False
    explain: bool = False
    echo: bool = False
    stop_matcher: StopMatcher | None = None
    warnings: list[str] = field(default_factory=list)
    spans_ms: Mapping[str, float] = field(default_factory=dict)


def draw_seed() -> int:
    """A seed for a request that has none."""
    return secrets.randbelow(MAX_DRAWN_SEED + 1)


def choice_seeds(seed: int, num_choices: int) -> tuple[int, ...]:
    """One seed a choice: the request's own for the first, then hashes of (seed, i). A negative seed counts modulo 2^64."""
    seed &= MAX_SEED
    return (seed, *(_hashed(seed, i) for i in range(1, num_choices)))


def _hashed(seed: int, i: int) -> int:
    digest = hashlib.sha256(f"{seed}:{i}".encode()).digest()
    return int.from_bytes(digest[:8], "little") & MAX_DRAWN_SEED
