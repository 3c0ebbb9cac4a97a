"""OpenAI's shapes, as msgspec structs: request bodies, answers, stream events. No other module spells a field of theirs.

Source: OpenAI API reference, "Chat" and "Completions"; `/tokenize` and `/detokenize` follow vLLM. Fields of ours sit under
the one key `hasten`. A field that is None on the way in counts as absent, as with OpenAI.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hasten.request import RANGES as SAMPLING_RANGES
from hasten.request import Ledger

# ---- requests ----------------------------------------------------------------------------------------------------------


class HastenFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a request may carry under `hasten`. Our own namespace is strict: a misspelt wish must not pass for granted."""

    explain: bool = False


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message; only text parts can be answered."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None
    prefix: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that both generating endpoints share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    hasten: HastenFields | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[Message] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of /v1/completions. `prompt` is one text, texts, one list of ids, or lists of ids."""

    prompt: str | list[str | int | list[int]] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of /tokenize: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[int] | None = None


# Field → numbers it takes, for those that do not even fit a double or 64 bits; the others are checked where they are used.
RANGES = {name: str(limits) for name, limits in SAMPLING_RANGES.items()} | {
    "n": "[1, 128]",
    "max_completion_tokens": str(SAMPLING_RANGES["max_tokens"]),
    "stop_token_ids[...]": str(SAMPLING_RANGES["stop_token_ids"]),
    "logit_bias[...]": str(SAMPLING_RANGES["logit_bias"]),
    "top_logprobs": str(SAMPLING_RANGES["logprobs"]),
}

# ---- answers -----------------------------------------------------------------------------------------------------------


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct):
    error: ErrorBody


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class HastenAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an answer carries under `hasten`. `seeds` has one entry a choice; sent alone it gives that choice again."""

    seed: int | None = None
    seeds: list[int] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)
    explain: Ledger | list[Ledger] | None = None


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists, one entry a token; `text_offset` counts characters from the start of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class AssistantMessage(msgspec.Struct):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class TextChoice(msgspec.Struct):
    """A choice of /v1/completions, whole or as a piece of a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Answer(msgspec.Struct, kw_only=True):
    """A whole answer, or one event of a stream (then `usage` is UNSET unless the client asked for it)."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    hasten: HastenAnswer | msgspec.UnsetType = msgspec.UNSET


class ModelCard(msgspec.Struct):
    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: Literal["hasten"] = "hasten"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class TokenizeAnswer(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(msgspec.Struct):
    prompt: str
