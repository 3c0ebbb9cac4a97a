"""What a request is, as plain serialisable data: parameters in, token events out, and the states in between."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hasten.errors import InvalidRequest

RequestId = int  # counted by the engine from 1; the public id ("chatcmpl-…") belongs to the server

MAX_SEED = 2**64 - 1
MAX_TOP_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 128


@dataclass(frozen=True, slots=True)
class Range:
    """The finite numbers from `low` to `high`, `low` itself not if it is open. Messages and --help write str() of it."""

    low: int
    high: int
    whole: bool = False
    open_low: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low < value <= self.high or (value == self.low and not self.open_low)

    def __str__(self) -> str:
        """ "(0, 1]" """
        return f"{'(' if self.open_low else '['}{self.low}, {self.high}]"

    def check(self, name: str, value: object) -> None:
        """Raises InvalidRequest that names the field."""
        # hundreds of biases in each of a hundred choices: most need no more than this
        if (type(value) is int or (type(value) is float and not self.whole)) and self.low < value < self.high:
            return
        if self.whole and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidRequest(f"{name} must be a whole number, got {value!r}", param=name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == math.inf:
            raise InvalidRequest(f"{name} must be a finite number, got {value!r}", param=name)
        if value not in self:
            raise InvalidRequest(f"{name} is {value}, it must be in {self}", param=name)


# Field of SamplingParams → what it takes, for a list each of its numbers. HTTP, --help and the docs have it from here.
RANGES: Mapping[str, Range] = {
    "max_tokens": Range(0, 2**31 - 1, whole=True),
    "temperature": Range(0, 100),
    "top_k": Range(-1, 2**31 - 1, whole=True),
    "top_p": Range(0, 1, open_low=True),
    "min_p": Range(0, 1),
    # negative seeds are in use in the wild: two's complement keeps them apart
    "seed": Range(-(2**63), MAX_SEED, whole=True),
    "stop_token_ids": Range(0, 2**31 - 1, whole=True),
    "logprobs": Range(0, MAX_TOP_LOGPROBS, whole=True),
    "prompt_logprobs": Range(0, MAX_TOP_LOGPROBS, whole=True),
    "repetition_penalty": Range(0, 100, open_low=True),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "logit_bias": Range(-100, 100),
}
_LISTS = ("stop", "stop_token_ids", "logit_bias")
_CAN_BE_NONE = ("max_tokens", "seed", "logprobs", "prompt_logprobs")
_NUMBERS = tuple((name, limits, name in _CAN_BE_NONE) for name, limits in RANGES.items() if name not in _LISTS)


class RequestStatus(enum.Enum):
    """Where a request is. `move_to` (scheduler) refuses every move that NEXT_STATUS does not list."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


NEXT_STATUS: Mapping[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: frozenset({RequestStatus.RUNNING, RequestStatus.FINISHED}),
    # back to WAITING: preempted
    RequestStatus.RUNNING: frozenset({RequestStatus.WAITING, RequestStatus.FINISHED}),
    RequestStatus.FINISHED: frozenset(),
}


class FinishReason(enum.Enum):
    """Why a request ended. STOP and LENGTH are OpenAI's words; the others never reach a body as finish_reason."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop. Checked on construction; every value is plain.

    temperature 0 is greedy whatever else is set. top_k 0 and top_p 1 and min_p 0 are off. `max_tokens` None means the
    rest of the context. `logprobs` is the number of alternatives wanted beside the chosen token (None: no logprobs at
    all), `prompt_logprobs` the same for the prompt's tokens. `seed` None: one is drawn at arrival.
    Penalties: repetition sees prompt and output, presence and frequency only the output.
    `stop` strings are matched on the detokenized text by `hasten.tokenizer.text_stream`, never by the engine.

    Raises: InvalidRequest naming the field.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name, limits, can_be_none in _NUMBERS:
            value = getattr(self, name)
            if value is not None or not can_be_none:
                limits.check(name, value)
        self._check_lists()

    def _check_lists(self) -> None:
        for name in _LISTS:
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)):  # a single text would be taken letter by letter
                raise InvalidRequest(f"{name} must be a tuple or a list, got {value!r}", param=name)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids)} entries, the limit is {MAX_STOP_TOKEN_IDS}",
                param="stop_token_ids",
            )
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequest("stop must hold non-empty strings", param="stop")
        token_ids, biases = RANGES["stop_token_ids"], RANGES["logit_bias"]
        for token_id in self.stop_token_ids:
            token_ids.check("stop_token_ids", token_id)
        for pair in self.logit_bias:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise InvalidRequest(f"logit_bias must hold pairs (token id, bias), got {pair!r}", param="logit_bias")
            token_ids.check("logit_bias", pair[0])
            biases.check("logit_bias", pair[1])

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as it crosses from server to engine: token ids and numbers only.

    `sampling.seed` and `sampling.max_tokens` are resolved (never None) and `eos_token_ids` lists every end token of the
    model, `ignore_eos` or not: the engine looks at that. `arrival_s` is time.monotonic() when the first byte was read.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    arrival_s: float = 0.0
    public_id: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of one token and of the best alternatives at its position (before temperature and cuts).

    `logprob` is None only for the first prompt token. `top` holds (token id, logprob), best first, ties to the lower id.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What the engine says about one request after one step.

    `token_ids` are new tokens in order, an end or stop token included (`stop_token_id` is set then: the text layer leaves
    it out of the text; the last event has it too, with `finish_reason` STOP). `logprobs` is aligned with token_ids, or
    empty. `prompt_logprobs` comes once. The last event of a request has `finish_reason`; with ERROR, `error` has the
    message. `ledger` comes with the last.
    """

    request_id: RequestId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    ledger: Ledger | None = None


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """One span of a request's wall time. Spans follow each other without gap or overlap."""

    name: str  # "parse", "tokenize", "queue", "prefill", "decode", "preempted", "held", "deliver"
    start_ms: float  # since arrival
    ms: float
    detail: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the time of one request went (design, section 10); `parts` add up to `wall_ms`.

    The one schema for /explain, responses, logs and reports. `predicted`, `miss` and `speculation` stay empty until the
    features that fill them exist. `steps` names the engine steps: first scheduled, first token, last token.
    """

    id: str
    wall_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    parts: tuple[LedgerPart, ...] = ()
    predicted: Mapping[str, float] = field(default_factory=dict)
    miss: Mapping[str, str | int] = field(default_factory=dict)
    speculation: Mapping[str, float | int] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    num_preemptions: int = 0
