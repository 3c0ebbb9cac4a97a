"""Chat completions over HTTP: shapes, streams, choices, usage. Answers come from an oracle that knows no HTTP."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.running import MODEL, RunningServer, running_server, scripted
from tests.support.toy_tokenizer import CHAT_TEMPLATE, toy

HELLO = [{"role": "user", "content": "Hi"}]
RENDERED = "<s><|turn|>user\nHi\n<|turn|>assistant\n"


def expected_text(server: RunningServer, num_tokens: int) -> str:
    return server.answer(RENDERED, num_tokens)


def test_answer_has_openais_shape(server: RunningServer) -> None:
    body = server.chat(max_tokens=12, seed=7).json()
    num_prompt = len(server.words.tokenizer.encode(RENDERED, add_special_tokens=False))
    assert body.pop("id").startswith("chatcmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": MODEL,
        "system_fingerprint": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": expected_text(server, 12), "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": 12,
            "total_tokens": num_prompt + 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "hasten": {"seed": 7, "seeds": [7]},
    }


def test_stream_joins_to_the_whole_answer(server: RunningServer) -> None:
    events = server.events("/v1/chat/completions", messages=HELLO, max_tokens=40)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all("role" not in delta for delta in deltas[1:])
    assert "".join(delta.get("content", "") for delta in deltas) == expected_text(server, 40)
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


@pytest.mark.parametrize("include_usage", [True, False, None])
def test_fr_006_usage_and_finish_reasons(server: RunningServer, include_usage: bool | None) -> None:
    options: dict[str, Any] = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
    events = server.events("/v1/chat/completions", messages=HELLO, max_tokens=5, n=2, **options)
    finished = [choice["index"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(finished) == [0, 1]
    if include_usage:
        *others, last = events
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 10
        assert all(event["usage"] is None for event in others)
    else:
        others = events
        assert all("usage" not in event for event in events)
    assert all(event["choices"] for event in others)


def test_fr_006_a_pause_in_a_stream_through_the_stock_client() -> None:
    """The engine stands still in the middle: what there is has come by then, nothing comes that is no part of the answer."""
    words = toy()
    executor = scripted(words, hold_after=3)
    with running_server(executor, words) as server:
        stream = server.openai.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
        chunks = [next(stream)]
        assert server.state.client.stats().num_generated_tokens <= 3
        executor.hold_after = None
        chunks += list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == expected_text(server, 20)
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
        assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 20


def test_stock_client_reads_a_whole_answer(server: RunningServer) -> None:
    answer = server.openai.chat.completions.create(model=MODEL, messages=HELLO, max_completion_tokens=9)
    assert answer.choices[0].message.content == expected_text(server, 9)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 9


def test_choices_have_their_own_seeds(server: RunningServer) -> None:
    body = server.chat(max_tokens=3, n=3, seed=42).json()
    seeds = body["hasten"]["seeds"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert seeds[0] == 42
    assert len(set(seeds)) == 3
    drawn = [new.sampling.seed for plan in server.executor.plans for new in plan.new]  # in as many steps as it takes
    assert drawn[-3:] == seeds
    # the prompt was answered three times, but counts once
    assert body["usage"]["prompt_tokens"] == server.chat(max_tokens=3).json()["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 9
    assert server.chat(max_tokens=3, n=3, seed=42).json()["hasten"]["seeds"] == seeds


def test_drawn_seed_survives_float64_and_is_returned(server: RunningServer) -> None:
    seeds = [server.chat(max_tokens=1).json()["hasten"]["seed"] for _ in range(4)]
    assert len(set(seeds)) == 4
    assert all(seed == int(float(seed)) for seed in seeds)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_shape(server: RunningServer, stream: bool) -> None:
    fields: dict[str, Any] = {"messages": HELLO, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}
    if stream:
        events = server.events("/v1/chat/completions", **fields)
        logprobs = [event["choices"][0]["logprobs"] for event in events]
        entries = [entry for part in logprobs if part for entry in part["content"]]
    else:
        entries = server.chat(**fields).json()["choices"][0]["logprobs"]["content"]
    tokenizer = server.words.tokenizer
    ids = server.answer_ids(RENDERED, 6)
    kept = [token_id for token_id in ids if token_id not in tokenizer.special_token_ids]
    assert [bytes(entry["bytes"]) for entry in entries if entry["bytes"]] == [
        tokenizer.token_bytes(token_id) for token_id in kept if tokenizer.token_bytes(token_id)
    ]
    assert [entry["logprob"] for entry in entries] == [-(token_id + 1) / 1000 for token_id in ids]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_parameters_reach_the_engine(server: RunningServer) -> None:
    server.chat(
        max_tokens=1, temperature=0.5, top_k=5, top_p=0.9, min_p=0.1, seed=-3, stop=["x", "y"], stop_token_ids=[9],
        repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=-0.3, logit_bias={"7": 1.5, "3": -2},
    )  # fmt: skip
    sampling = next(new.sampling for plan in reversed(server.executor.plans) for new in plan.new)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 5, 0.9, 0.1)
    assert sampling.seed == 2**64 - 3
    assert sampling.stop == ("x", "y")
    assert sampling.stop_token_ids == (9,)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, 0.2, -0.3)
    assert sampling.logit_bias == ((3, -2.0), (7, 1.5))


def test_absent_max_tokens_is_the_rest_of_the_context() -> None:
    words = toy()
    with running_server(scripted(words, max_model_len=100), words) as server:
        usage = server.chat(ignore_eos=True).json()["usage"]
        assert usage["total_tokens"] == 100
        usage = server.chat(ignore_eos=True, max_tokens=5000).json()["usage"]
        assert usage["total_tokens"] == 100


def test_models_own_sampling_defaults_apply_below_the_request() -> None:
    words = toy()
    with running_server(scripted(words), words, sampling_defaults={"temperature": 0.6, "top_p": 0.8}) as server:
        server.chat(max_tokens=1, top_p=0.5)
        sampling = server.executor.plans[0].new[0].sampling
        assert (sampling.temperature, sampling.top_p) == (0.6, 0.5)


def test_message_forms_render_alike(server: RunningServer) -> None:
    plain = server.chat(max_tokens=4, messages=[{"role": "system", "content": "a\nb"}, *HELLO])
    parts = server.chat(
        max_tokens=4,
        messages=[{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, *HELLO],
    )
    assert plain.json()["choices"] == parts.json()["choices"]


def test_null_assistant_content_is_empty(server: RunningServer) -> None:
    with_null = server.chat(max_tokens=4, messages=[*HELLO, {"role": "assistant", "content": None}, *HELLO])
    empty = server.chat(max_tokens=4, messages=[*HELLO, {"role": "assistant", "content": ""}, *HELLO])
    assert with_null.json()["choices"] == empty.json()["choices"]


@pytest.mark.parametrize("fields", [{"user": "me"}, {"wibble": 1}, {"tools": []}, {"tool_choice": "auto"},
                                    {"response_format": {"type": "text"}}, {"modalities": ["text"]}])  # fmt: skip
def test_harmless_fields_are_answered(server: RunningServer, fields: dict[str, Any]) -> None:
    body = server.chat(max_tokens=1, **fields).json()
    warnings = body["hasten"].get("warnings", [])
    assert warnings == (["the field 'wibble' is not known and was ignored"] if "wibble" in fields else [])


def refusing_template(words: str) -> str:
    return "{% if messages[0]['role'] == 'system' %}{{ raise_exception('" + words + "') }}{% endif %}" + CHAT_TEMPLATE


def test_fr_007_template_refuses_the_system_role() -> None:
    words = toy(chat_template=refusing_template("System role not supported here"))
    with running_server(words=words) as server:
        response = server.chat(messages=[{"role": "system", "content": "x"}, *HELLO])
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert "System role not supported here" in response.json()["error"]["message"]
        assert server.chat(max_tokens=1).status_code == 200


def test_fr_007_template_demands_alternation() -> None:
    template = (
        "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m['content'] }}{% endfor %}"
    )
    with running_server(words=toy(chat_template=template)) as server:
        response = server.chat(messages=[*HELLO, *HELLO])
        assert response.status_code == 400
        assert "roles must alternate" in response.json()["error"]["message"]
        with pytest.raises(openai.BadRequestError, match="roles must alternate"):
            server.openai.chat.completions.create(model=MODEL, messages=[*HELLO, *HELLO], stream=True)
        assert server.chat(max_tokens=1).status_code == 200


def test_fr_007_no_template() -> None:
    with running_server(words=toy(chat_template=None)) as server:
        response = server.chat()
        assert response.status_code == 400
        assert "--chat-template" in response.json()["error"]["message"]
        assert server.complete(max_tokens=1).status_code == 200


def test_own_template_replaces_the_models() -> None:
    words = toy(chat_template=None)
    with running_server(words=words, chat_template="{{ messages[0]['content'] }}!") as server:
        assert server.chat(max_tokens=1).json()["usage"]["prompt_tokens"] == len("Hi!")


def test_fr_008_one_bos() -> None:
    words = toy(add_bos=True)
    with running_server(words=words) as server:
        usage = server.chat(max_tokens=1).json()["usage"]
        prompt = server.executor.plans[0].new[0].prompt_token_ids
        assert prompt.count(words.bos) == 1
        assert prompt[0] == words.bos
        assert usage["prompt_tokens"] == len(prompt)
        # the rendered text as a raw completion: the tokenizer sees the BOS that is there
        server.complete(prompt=RENDERED, max_tokens=1)
        raw = next(new.prompt_token_ids for plan in reversed(server.executor.plans) for new in plan.new)
        assert raw == prompt


def test_fr_008_a_template_without_bos_gets_none() -> None:
    # as the reference library does it: the template's text is the whole prompt
    words = toy(add_bos=True, chat_template="{{ messages[0]['content'] }}")
    with running_server(words=words) as server:
        assert server.chat(max_tokens=1).json()["usage"]["prompt_tokens"] == len("Hi")
        assert server.executor.plans[0].new[0].prompt_token_ids == tuple(b"Hi")
