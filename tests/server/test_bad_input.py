"""Bad fields: a clear error with the field's name; the server lives on and other streams never notice."""

from __future__ import annotations

import json
import threading
from typing import Any

import openai
import pytest

from hasten.scheduler.plan import StepPlan, StepResult
from tests.server.refusals import CHAT, HELLO, TEXT, promptly, refused
from tests.server.running import MODEL, RunningServer, running_server, scripted
from tests.support.scripted import ScriptedExecutor
from tests.support.toy_tokenizer import Toy, toy

BAD_CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0]"),
    ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 1e6}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.0}, "seed"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 129}, "n"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    ({"stop": 5}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop_token_ids": ["x"]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"hasten": {"explain": "yes"}}, "hasten.explain"),
    ({"hasten": []}, "hasten"),
    ({"hasten": {"explian": True}}, "hasten"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"min_tokens": 1}, "min_tokens"),
    ({"guided_json": {}, "echo": True}, "echo"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT_FIELDS, ids=lambda value: value if isinstance(value, str) else None)
def test_bad_chat_field_is_named(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = server.http.post(CHAT, json={"model": MODEL, "messages": HELLO, "max_tokens": 2, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param.rpartition(".")[2].partition("[")[0] in error["message"]


BAD_TEXT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"best_of": 2}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt"),
    ({"prompt": [[1, "a"]]}, "prompt[0][1]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": ["a"] * 129}, "n"),
    ({"prompt": ["a", "b"], "n": 65}, "n"),
    ({"messages": HELLO}, "messages"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_TEXT_FIELDS, ids=lambda value: value if isinstance(value, str) else None)
def test_bad_text_field_is_named(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = server.complete(max_tokens=2, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"10000000": 1}}, "logit_bias"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"stop_token_ids": [10**7], "min_tokens": 1}, "min_tokens"),
        ({"stop_token_ids": [10**7]}, "stop_token_ids"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**7]}, "prompt"),
        ({"prompt": [[97], [10**30]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["fine", ""]}, "prompt"),
    ],
)
def test_fr_047_bad_ids_and_empty_prompts(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    error = refused(server, TEXT, {"model": MODEL, "prompt": "Hi", "max_tokens": 2, **fields})
    assert error["param"] == param


@pytest.mark.parametrize("name", [None, "other", ""])
def test_model_that_is_not_served(server: RunningServer, name: str | None) -> None:
    error = refused(server, TEXT, {"model": name, "prompt": "Hi"}, 404)
    assert error["param"] == "model"
    assert error["code"] == "model_not_found"
    assert "'toy'" in error["message"]
    assert "'toy-alias'" in error["message"]


def test_alias_is_served(server: RunningServer) -> None:
    assert server.complete(model="toy-alias", max_tokens=1).json()["model"] == "toy-alias"


@pytest.mark.parametrize("max_tokens", [None, 1, 100_000])
@pytest.mark.parametrize("kind", ["text", "ids"])
@pytest.mark.parametrize("num_tokens", [2047, 2048, 2049, 20480])
def test_fr_041_prompts_around_the_limit(server: RunningServer, max_tokens: int | None, kind: str, num_tokens: int) -> None:
    prompt: Any = "a" * num_tokens if kind == "text" else [97] * num_tokens
    if num_tokens > 2048:
        response = promptly(lambda: server.complete(prompt=prompt, max_tokens=max_tokens))
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == "prompt"
        assert "2048" in error["message"]
        assert str(num_tokens) in error["message"]
    else:
        response = server.complete(prompt=prompt, max_tokens=max_tokens)
        assert response.status_code == 200
        body = response.json()
        assert body["usage"] | {"prompt_tokens_details": None} == {
            "prompt_tokens": num_tokens,
            "completion_tokens": 2048 - num_tokens,
            "total_tokens": 2048,
            "prompt_tokens_details": None,
        }
        assert ("warnings" in body["hasten"]) == (num_tokens == 2048)


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_fr_041_megabytes_are_refused_by_their_beginning(path: str) -> None:
    # one long token, so that the number of characters alone does not rule the text out
    words = toy(user_defined=["x" * 4000])
    with running_server(scripted(words, max_model_len=2048), words) as server:
        text = "so be it. " * 500_000
        body = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
        error = refused(server, path, {"model": MODEL, **body})
        assert error["code"] == "context_length_exceeded"
        assert error["param"] == ("prompt" if path == TEXT else "messages")
        assert "max_model_len is 2048" in error["message"]
        assert f"the first {8 * 2048} of the prompt's 50000" in error["message"]  # a chat has some more than the text


def test_fr_042_no_silent_truncation(server: RunningServer) -> None:
    filler = "The sky was grey that day. " * (2 * 2048 // 27)
    text = "The code word is marzipan.\n" + filler + "\nWhat is the code word?"
    error = refused(server, CHAT, {"model": MODEL, "messages": [{"role": "user", "content": text}]})
    assert error["code"] == "context_length_exceeded"
    error = refused(
        server, CHAT, {"model": MODEL, "messages": [{"role": "user", "content": text}], "truncate_prompt_tokens": 100}
    )
    assert error["param"] == "truncate_prompt_tokens"


def test_fr_017_prompt_over_the_pool_is_refused_at_once() -> None:
    words = toy()
    with running_server(scripted(words, num_blocks=4, max_model_len=4096), words) as server:
        response = server.complete(prompt="a" * 200, max_tokens=5)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert "200" in message
        assert "128" in message
        assert server.complete(prompt="a" * 10, max_tokens=5).status_code == 200


def test_unknown_paths_and_methods_have_openais_shape(server: RunningServer) -> None:
    for method, path, status in [("GET", "/v1/nothing", 404), ("GET", CHAT, 405), ("DELETE", "/health", 405)]:
        response = server.http.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_engine_failure_of_one_request_is_its_error_only() -> None:
    words = toy()
    executor = scripted(words, fail_requests={1: "logits are not finite"})
    with running_server(executor, words) as server:
        assert server.complete(max_tokens=2).status_code == 200
        response = server.complete(max_tokens=2)
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "logits are not finite"
        assert server.complete(max_tokens=2).status_code == 200


def test_an_engine_that_has_failed_says_so() -> None:
    words = toy()
    with running_server(
        scripted(words, fail_steps={1: RuntimeError("a"), 2: RuntimeError("b"), 3: RuntimeError("c")}), words
    ) as server:
        for _ in range(3):
            assert (server.http.get("/health").status_code, server.http.get("/ready").status_code) == (200, 200)
            assert server.complete(max_tokens=2).status_code == 500
        # at once: a balancer must not need a victim to find out
        for answer in (server.http.get("/health"), server.http.get("/ready"), server.complete(max_tokens=2)):
            assert answer.status_code == 503
            assert "after 3 failed steps in a row" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"]


def test_draining_is_not_failing() -> None:
    with running_server() as server:
        server.state.is_draining = True
        assert (server.http.get("/health").status_code, server.http.get("/ready").status_code) == (200, 503)
        assert server.state.client.stats().failed is None


def test_failure_in_the_middle_of_a_stream_is_an_error_event() -> None:
    words = toy()
    executor, is_read = failing_in_step_3(words)
    with running_server(executor, words) as server:
        body = {"model": MODEL, "prompt": "Hi", "max_tokens": 10, "stream": True}
        with server.http.stream("POST", TEXT, json=body) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            assert next(lines).startswith('data: {"id"')
            is_read.set()
            *_, error, done = [line for line in lines if line]
        assert done == "data: [DONE]"
        assert "boom" in json.loads(error[6:])["error"]["message"]
        assert json.loads(error[6:])["error"]["type"] == "server_error"
    executor, is_read = failing_in_step_3(words)
    with running_server(executor, words) as server:
        stream = server.openai.completions.create(model=MODEL, prompt="Hi", max_tokens=10, stream=True)
        next(stream)
        is_read.set()
        with pytest.raises(openai.APIError, match="boom"):
            list(stream)
        assert server.complete(max_tokens=2).status_code == 200


def failing_in_step_3(words: Toy) -> tuple[ScriptedExecutor, threading.Event]:
    """An executor whose third step fails, but not before the event is set: then the answer's beginning is with the client."""
    executor, is_read = scripted(words, fail_steps={3: RuntimeError("boom")}), threading.Event()
    run = executor._run

    def late(plan: StepPlan, *rest: Any) -> StepResult:
        assert plan.step_id != 3 or is_read.wait(20)
        return run(plan, *rest)

    executor._run = late  # type: ignore[method-assign]
    return executor, is_read
