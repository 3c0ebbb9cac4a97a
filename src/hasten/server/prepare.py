"""From OpenAI's request bodies to a Job: defaults, checks with the client's own field names, template, tokens."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hasten.errors import InvalidRequest
from hasten.request import MAX_TOP_LOGPROBS, SamplingParams
from hasten.server.job import Job, Prompt, choice_seeds, draw_seed
from hasten.server.protocol import ChatRequest, CompletionRequest, ContentPart, Message, SamplingFields
from hasten.server.quoting import cut
from hasten.server.state import ServerState
from hasten.server.tokenizing import chat_token_ids, text_of, token_ids_of
from hasten.tokenizer.stop_matcher import StopMatcher

MAX_CHOICES = 128  # OpenAI's limit for n; here for n × prompts
MAX_STOP_STRINGS = 16
INLINE_STOP_CHARS = 500  # about 1 ms
MAX_LOGIT_BIAS = 1024
MESSAGES_PER_SLICE = 200
_ROLES = ("system", "developer", "user", "assistant")
_UNSUPPORTED_IN_MESSAGES = (
    ("tool_calls", "tool calls are"),
    ("function_call", "tool calls are"),
    ("prefix", "continuing a message is"),
)
_SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))


async def chat_job(state: ServerState, body: ChatRequest, **known: Any) -> Job:
    """A Job from a chat request. `known` are the fields of Job that the route knows.

    Raises: InvalidRequest, PromptTooLong, TemplateError, UnknownModel.
    """
    model = state.check_model(body.model)
    sampling = _sampling(state, body, max_tokens=_max_completion_tokens(body), logprobs=_chat_logprobs(body))
    num_choices = _num_choices(body, 1)
    messages = await plain_messages(body.messages)
    start_s = time.monotonic()
    token_ids = await chat_token_ids(state, messages)
    prompt = Prompt(tuple(token_ids))
    state.limits.check_prompt(prompt.token_ids)
    job = Prepared(model, sampling, (prompt,), num_choices, "chatcmpl", start_s)
    return await _job(state, body, job, **known)


async def completion_job(state: ServerState, body: CompletionRequest, **known: Any) -> Job:
    """A Job from a text completion request; as chat_job."""
    model = state.check_model(body.model)
    if body.best_of is not None and body.best_of != 1:
        raise InvalidRequest(f"best_of is {body.best_of}: only 1 is supported", param="best_of", code="unsupported_parameter")
    echo_logprobs = body.logprobs if body.echo else None
    sampling = _sampling(state, body, max_tokens=body.max_tokens, logprobs=body.logprobs, prompt_logprobs=echo_logprobs)
    sources = _prompt_sources(body.prompt)
    num_choices = _num_choices(body, len(sources))
    start_s = time.monotonic()
    names = [f"prompt[{i}]" if sources is body.prompt else "the prompt" for i in range(len(sources))]
    prompts = tuple([await _prompt(state, source, bool(body.echo), name) for source, name in zip(sources, names, strict=True)])
    job = Prepared(model, sampling, prompts, num_choices, "cmpl", start_s)
    return await _job(state, body, job, echo=bool(body.echo), **known)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the two endpoints find out in their own ways. `tokenize_from_s` is when parsing was over."""

    model: str
    sampling: SamplingParams
    prompts: tuple[Prompt, ...]
    num_choices: int
    id_prefix: str
    tokenize_from_s: float


async def plain_messages(messages: Sequence[Message] | None) -> list[dict[str, Any]]:
    """Messages as chat templates take them: text only, `developer` as `system`, null content as empty."""
    if not messages:
        raise InvalidRequest("messages is missing or empty: it needs at least one message", param="messages")
    plain = []
    for i, message in enumerate(messages):
        plain.append(_plain_message(message, f"messages[{i}]"))
        if i % MESSAGES_PER_SLICE == MESSAGES_PER_SLICE - 1:
            await asyncio.sleep(0)  # others get the loop
    return plain


def _plain_message(message: Message, where: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise InvalidRequest(f"{where}.role is {cut(message.role)!r}: supported are {', '.join(_ROLES)}", param=f"{where}.role")
    for name, what in _UNSUPPORTED_IN_MESSAGES:
        if getattr(message, name):
            raise InvalidRequest(
                f"{where}.{name} is not supported: {what} not built yet", param=f"{where}.{name}", code="unsupported_parameter"
            )
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"{where}.content is missing", param=f"{where}.content")
    content = message.content or ""
    if not isinstance(content, str):
        content = "\n".join(_text_of(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    plain = {"role": "system" if message.role == "developer" else message.role, "content": content}
    return plain if message.name is None else {**plain, "name": message.name}


def _text_of(part: ContentPart, where: str) -> str:
    if part.type != "text":
        message = f"{where}.type is {cut(part.type)!r}: this model reads text only"
        raise InvalidRequest(message, param=f"{where}.type", code="unsupported_parameter")
    if part.text is None:
        raise InvalidRequest(f"{where}.text is missing", param=f"{where}.text")
    return part.text


def _prompt_sources(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """The prompts of a completion request, one each; OpenAI allows four spellings."""
    if prompt is None:
        raise InvalidRequest("prompt is missing", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt is an empty list: it needs at least one prompt", param="prompt")
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [prompt]  # type: ignore[list-item]  # just seen: all are int
    if kinds == {str} or kinds == {list}:
        return prompt  # type: ignore[return-value]  # just seen: all are str, or all are lists
    raise InvalidRequest("prompt mixes texts, ids and lists: send texts, ids, or lists of ids", param="prompt")


async def _prompt(state: ServerState, source: str | list[int], with_text: bool, name: str) -> Prompt:
    token_ids = await token_ids_of(state, source, param="prompt") if isinstance(source, str) else source
    if not token_ids:
        raise InvalidRequest(f"{name} is empty: it needs at least one token", param="prompt")
    state.limits.check_prompt(token_ids)
    if isinstance(source, str):
        return Prompt(tuple(token_ids), source)
    if not with_text:
        return Prompt(tuple(token_ids))
    return Prompt(tuple(token_ids), await text_of(state, token_ids))


async def _job(
    state: ServerState, body: SamplingFields, prepared: Prepared, *, arrival_s: float, warnings: list[str], **known: Any
) -> Job:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    room = min(state.resolve(SamplingParams(), len(prompt.token_ids)).max_tokens or 0 for prompt in prepared.prompts)
    if room == 0 and prepared.sampling.max_tokens != 0:
        warnings = [*warnings, f"the prompt fills the context of {state.limits.max_tokens_total} tokens: no answer fits"]
    seed = draw_seed() if body.seed is None else body.seed
    stop_matcher = await _stop_matcher(prepared.sampling.stop)
    now_s = time.monotonic()
    return Job(
        public_id=f"{prepared.id_prefix}-{secrets.token_hex(12)}",
        model=prepared.model,
        prompts=prepared.prompts,
        sampling=prepared.sampling,
        seed=seed,
        seeds=choice_seeds(seed, prepared.num_choices),
        eos_token_ids=state.tokenizer.eos_token_ids,
        arrival_s=arrival_s,
        created_s=int(time.time()),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        explain=bool(body.hasten and body.hasten.explain),
        stop_matcher=stop_matcher,
        warnings=warnings,
        spans_ms={
            "parse": (prepared.tokenize_from_s - arrival_s) * 1e3,
            "tokenize": (now_s - prepared.tokenize_from_s) * 1e3,
        },
        **known,
    )


async def _stop_matcher(stop: tuple[str, ...]) -> StopMatcher | None:
    if sum(map(len, stop)) <= INLINE_STOP_CHARS:
        return StopMatcher(stop) if stop else None
    return await asyncio.to_thread(StopMatcher, stop)


def _num_choices(body: SamplingFields, num_prompts: int) -> int:
    num_choices = 1 if body.n is None else body.n
    if num_choices < 1 or num_choices * num_prompts > MAX_CHOICES:
        raise InvalidRequest(f"n × prompts is {num_choices} × {num_prompts}: it must be in [1, {MAX_CHOICES}]", param="n")
    return num_choices


def _sampling(state: ServerState, body: SamplingFields, **own: Any) -> SamplingParams:
    """SamplingParams from the body's fields, then the model's own defaults, then ours. Raises InvalidRequest."""
    values: dict[str, Any] = dict(state.sampling_defaults)
    for name in _SAMPLING_FIELDS:
        value = getattr(body, name, None)
        if value is not None:
            values[name] = value
    values |= {"logprobs": None, "max_tokens": None} | own
    values["stop"] = _stop_strings(body.stop)
    values["stop_token_ids"] = tuple(body.stop_token_ids or ())
    values["logit_bias"] = _logit_bias(body.logit_bias or {})
    values.pop("seed", None)
    _check_seed(body.seed)
    params = SamplingParams(**values)
    state.limits.check_sampling(params)
    return params


def _check_seed(seed: int | None) -> None:
    SamplingParams(seed=seed)


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop has {len(strings)} strings, the limit is {MAX_STOP_STRINGS}", param="stop")
    return strings


def _logit_bias(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias has {len(bias)} entries, the limit is {MAX_LOGIT_BIAS}", param="logit_bias")
    pairs = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidRequest(f"logit_bias: {key[:40]!r} is not a token id", param="logit_bias")
        pairs[int(key)] = value
    return tuple(sorted(pairs.items()))


def _max_completion_tokens(body: ChatRequest) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_tokens is {old} and max_completion_tokens is {new}: send one of them", param="max_completion_tokens"
        )
    try:
        SamplingParams(max_tokens=new)
    except InvalidRequest as error:  # said with the client's own word
        message = str(error).replace("max_tokens", "max_completion_tokens")
        raise InvalidRequest(message, param="max_completion_tokens") from None
    return old if new is None else new


def _chat_logprobs(body: ChatRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    num_top = body.top_logprobs or 0
    if not 0 <= num_top <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs is {num_top}, it must be in [0, {MAX_TOP_LOGPROBS}]", param="top_logprobs")
    return num_top if body.logprobs else None
