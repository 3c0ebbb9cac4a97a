"""Fields of OpenAI's, vLLM's and llama-server's request bodies that hasten does not act on: which are refused, which not.

A field that would change the answer is refused, so that nobody takes an answer for what it is not. Any other unknown
field is ignored and named in `hasten.warnings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hasten.errors import InvalidRequest
from hasten.server.json_body import decode
from hasten.server.protocol import ChatRequest, CompletionRequest, SamplingFields, StreamOptions
from hasten.server.quoting import cut

MAX_WARNINGS = 20  # about fields that are not known

# They say who asks, or how to store, route or price: nothing about the text.
SILENT = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "parallel_tool_calls", "priority", "request_id", "cache_prompt", "id_slot", "include_reasoning",
    }
)  # fmt: skip

# Field → values (beside null, empty and false) that ask for nothing out of the ordinary.
REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": (),
    "tool_choice": ("none", "auto"),
    "functions": (),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning": (),
    "reasoning_effort": ("none",),
    "thinking": (),
    "thinking_token_budget": (),
    "enable_thinking": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "suffix": (),
    "min_tokens": (0,),
    "use_beam_search": (),
    "length_penalty": (1, 1.0),
    "bad_words": (),
    "allowed_token_ids": (),
    "logits_processors": (),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "grammar": (),
    "json_schema": (),
    "structured_outputs": (),
    "chat_template": (),
    "chat_template_kwargs": (),
    "documents": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (),
    "add_special_tokens": (True,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (),
    "lora": (),
    "lora_adapter": (),
    "prompt_logprobs": (),
    "return_token_ids": (),
    "return_tokens_as_token_ids": (),
    "n_probs": (0,),
    "n_predict": (),
    "t_max_predict_ms": (0, -1),
    "samplers": (),
    "min_keep": (0,),
    "repeat_penalty": (1, 1.0),
    "repeat_last_n": (-1, 64),  # the whole text, as here, or what llama-server takes when nothing is said
    "dry_multiplier": (0, 0.0),
    "dynatemp_range": (0, 0.0),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "tfs_z": (1, 1.0),
    "top_a": (0, 0.0),
    "top_n_sigma": (-1, -1.0, 0, 0.0),
    "typical_p": (1, 1.0),
    "xtc_probability": (0, 0.0),
}
_STREAM_OPTIONS = frozenset({*StreamOptions.__struct_fields__, "include_obfuscation"})  # the latter asks for padding
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})
_REFUSED_PREFIX = "guided_"  # vLLM's older words for structured output
# A field of the other endpoint: ignoring `echo` in a chat would lose text that the client waits for.
_OF_ONE_ENDPOINT: dict[type[SamplingFields], tuple[str, ...]] = {
    ChatRequest: ("prompt", "echo", "best_of"),
    CompletionRequest: ("messages", "max_completion_tokens", "top_logprobs"),
}


def check_fields(body: bytes, names: Iterable[str], kind: type[SamplingFields]) -> list[str]:
    """Warnings about ignored fields. Raises InvalidRequest for one that would change the answer."""
    unknown = _unknown(names, kind)
    refused = [
        name for name in unknown if name in REFUSED or name.startswith(_REFUSED_PREFIX) or name in _OF_ONE_ENDPOINT[kind]
    ]
    if refused:
        _check_harmless(body, refused, REFUSED)
    ignored = [repr(cut(name)) for name in unknown if name not in refused]
    if "stream_options" in names:
        ignored += [f"stream_options.{cut(name)}" for name in _unknown_stream_options(body)]
    warnings = [f"the field {name} is not known and was ignored" for name in ignored[:MAX_WARNINGS]]
    if len(ignored) > MAX_WARNINGS:
        warnings.append(f"{len(ignored) - MAX_WARNINGS} more fields are not known and were ignored")
    return warnings


def refuse_unknown(body: bytes, names: Iterable[str], kind: type[msgspec.Struct]) -> None:
    """For answers that have no place for a warning. Raises InvalidRequest for an unknown field that asks for something."""
    unknown = _unknown(names, kind)
    if unknown:
        _check_harmless(body, unknown, {})


def _unknown(names: Iterable[str], kind: type[msgspec.Struct]) -> list[str]:
    known = set(kind.__struct_fields__)
    return sorted(name for name in names if name not in known and name not in SILENT)


def _unknown_stream_options(body: bytes) -> list[str]:
    options = decode(body, _StreamOptionsOnly).stream_options or {}
    return sorted(
        name for name, value in options.items() if name not in _STREAM_OPTIONS and bytes(value) not in (b"null", b"false")
    )


class _StreamOptionsOnly(msgspec.Struct):
    stream_options: dict[str, msgspec.Raw] | None = None


def _check_harmless(body: bytes, names: Iterable[str], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    values = decode(body, dict[str, msgspec.Raw])
    for name in names:
        raw = bytes(values[name])
        value = decode(raw, object)
        # 0 == False and 1 == True in Python, but a number and a switch are not the same answer
        if any(type(value) is type(ordinary) and value == ordinary for ordinary in (*_NOTHING, *neutral.get(name, ()))):
            continue
        shown = raw[:60].decode(errors="replace") + ("…" if len(raw) > 60 else "")
        raise InvalidRequest(
            f"{cut(name)} is not supported and would change the answer, so it is refused: leave it out (got {shown})",
            param=cut(name),
            code="unsupported_parameter",
        )
