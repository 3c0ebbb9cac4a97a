"""Fields of other servers: what would change the answer is refused, what does not passes, and nothing is dropped unsaid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hasten.server.fields import REFUSED
from tests.server.refusals import CHAT, HELLO
from tests.server.running import MODEL, RunningServer

CHANGES_THE_ANSWER = [
    {"repeat_penalty": 1.1}, {"repeat_last_n": 128}, {"xtc_probability": 0.5}, {"top_n_sigma": 1}, {"dynatemp_range": 0.5},
    {"samplers": ["top_k"]}, {"n_probs": 5}, {"mirostat_mode": 2}, {"tfs_z": 0.9}, {"top_a": 0.1}, {"min_keep": 2},
    {"t_max_predict_ms": 100}, {"lora": [{"id": 0}]}, {"prompt_logprobs": 0}, {"prompt_logprobs": 3},
    {"return_tokens_as_token_ids": True}, {"return_token_ids": True}, {"thinking_token_budget": 5}, {"enable_thinking": True},
    {"thinking": {"type": "enabled"}}, {"reasoning": {"effort": "low"}}, {"verbosity": "high"}, {"guided_json": {"a": 1}},
    {"guided_decoding_backend": "xgrammar"}, {"guided_whitespace_pattern": " "}, {"guided_regex": "a+"},
]  # fmt: skip
NEUTRAL = [
    {"repeat_penalty": 1.0, "repeat_last_n": 64, "xtc_probability": 0.0, "top_n_sigma": -1, "n_probs": 0},
    {"dynatemp_range": 0.0, "mirostat": 0},
    {"mirostat_mode": 0, "tfs_z": 1.0, "top_a": 0, "min_keep": 0, "t_max_predict_ms": -1, "typical_p": 1},
    {"samplers": [], "lora": [], "prompt_logprobs": None, "return_token_ids": False, "enable_thinking": False},
    {"verbosity": "medium", "guided_json": None, "guided_decoding_backend": "", "include_reasoning": True},
    {"cache_prompt": True, "id_slot": -1},
]  # fmt: skip


@pytest.mark.parametrize("fields", CHANGES_THE_ANSWER, ids=str)
def test_what_would_change_the_answer_is_refused(server: RunningServer, fields: dict[str, Any]) -> None:
    for response in (server.chat(max_tokens=1, **fields), server.complete(max_tokens=1, **fields)):
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == next(iter(fields))
        assert error["code"] == "unsupported_parameter"
        assert error["param"] in error["message"]


@pytest.mark.parametrize("fields", NEUTRAL, ids=str)
def test_what_asks_for_nothing_passes_without_a_word(server: RunningServer, fields: dict[str, Any]) -> None:
    for response in (server.chat(max_tokens=1, **fields), server.complete(max_tokens=1, **fields)):
        assert response.status_code == 200, response.text
        assert "warnings" not in response.json()["hasten"]


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"function_call": {"name": "f", "arguments": "{}"}}, "messages[0].function_call"),
        ({"tool_calls": [{"id": "1"}]}, "messages[0].tool_calls"),
        ({"prefix": True}, "messages[0].prefix"),
    ],
)
def test_messages_of_other_kinds_are_refused(server: RunningServer, extra: dict[str, Any], param: str) -> None:
    message = {"role": "assistant", "content": "Hi"}
    response = server.http.post(CHAT, json={"model": MODEL, "messages": [message | extra], "max_tokens": 1})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    neutral = {"function_call": None, "tool_calls": [], "prefix": False, "refusal": None}
    response = server.http.post(CHAT, json={"model": MODEL, "messages": [message | neutral], "max_tokens": 1})
    assert response.status_code == 200


def test_unknown_stream_options_are_named(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "wibble": None, "include_obfuscation": True}
    events = server.events(CHAT, messages=HELLO, max_tokens=1, stream_options=options)
    assert events[-1]["hasten"]["warnings"] == ["the field stream_options.continuous_usage_stats is not known and was ignored"]


def test_the_documentation_lists_what_is_refused() -> None:
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in REFUSED if f"`{name}`" not in text] == []
