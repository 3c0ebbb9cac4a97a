"""Fields of OpenAI's and vLLM's request bodies that hasten does not act on: which are harmless, which are refused.

A field that would change the answer is refused, so that nobody takes an answer for what it is not. Any other unknown
field is ignored and named in `hasten.warnings`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from hasten.errors import InvalidRequest
from hasten.server.json_body import decode
from hasten.server.protocol import ChatRequest, CompletionRequest, SamplingFields
from hasten.server.quoting import cut

MAX_WARNINGS = 20  # about fields that are not known

# They say who asks, or how to store, route or price: nothing about the text.
SILENT = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "parallel_tool_calls", "priority", "request_id",
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
    "reasoning_effort": ("none",),
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
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "chat_template": (),
    "chat_template_kwargs": (),
    "documents": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (),
    "add_special_tokens": (True,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (),
    "lora_adapter": (),
    "dry_multiplier": (0, 0.0),
    "mirostat": (0,),
    "typical_p": (1, 1.0),
    "n_predict": (),
}
# A field of the other endpoint: ignoring `echo` in a chat would lose text that the client waits for.
_OF_ONE_ENDPOINT: dict[type[SamplingFields], tuple[str, ...]] = {
    ChatRequest: ("prompt", "echo", "best_of"),
    CompletionRequest: ("messages", "max_completion_tokens", "top_logprobs"),
}


def check_fields(body: bytes, names: Iterable[str], kind: type[SamplingFields]) -> list[str]:
    """Warnings about ignored top-level fields. Raises InvalidRequest for one that would change the answer."""
    known = set(kind.__struct_fields__)
    unknown = sorted(name for name in names if name not in known and name not in SILENT)
    if not unknown:
        return []
    refused = [name for name in unknown if name in REFUSED or name in _OF_ONE_ENDPOINT[kind]]
    if refused:
        values = decode(body, dict[str, msgspec.Raw])
        for name in refused:
            _check_harmless(name, bytes(values[name]))
    ignored = [name for name in unknown if name not in refused]
    warnings = [f"the field {cut(name)!r} is not known and was ignored" for name in ignored[:MAX_WARNINGS]]
    if len(ignored) > MAX_WARNINGS:
        warnings.append(f"{len(ignored) - MAX_WARNINGS} more fields are not known and were ignored")
    return warnings


def _check_harmless(name: str, raw: bytes) -> None:
    value = decode(raw, object)
    # 0 == False in Python, but a number and a switch are not the same answer
    if value is None or value is False or value in ("", [], {}) or value in REFUSED.get(name, ()):
        return
    shown = raw[:60].decode(errors="replace") + ("…" if len(raw) > 60 else "")
    raise InvalidRequest(
        f"{name} is not supported and would change the answer, so it is refused: leave it out (got {shown})",
        param=name,
        code="unsupported_parameter",
    )
