"""Text completions over HTTP: the spellings of a prompt, echo, logprobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.running import MODEL, RunningServer, running_server, scripted
from tests.support.toy_tokenizer import toy


def test_answer_has_openais_shape(server: RunningServer) -> None:
    body = server.complete(prompt="Once", max_tokens=10, seed=3).json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": MODEL,
        "system_fingerprint": "scripted",
        "choices": [{"index": 0, "text": server.answer("Once", 10), "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 10,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "hasten": {"seed": 3, "seeds": [3]},
    }


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab"], ["ab"]),
        (["ab", "cde"], ["ab", "cde"]),
        ([97, 98], ["ab"]),
        ([[97, 98]], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_spellings_of_a_prompt(server: RunningServer, prompt: Any, texts: list[str], stream: bool) -> None:
    expected = {i: server.answer(text, 8) for i, text in enumerate(texts)}
    if stream:
        joined = dict.fromkeys(expected, "")
        for event in server.events("/v1/completions", prompt=prompt, max_tokens=8):
            for choice in event["choices"]:
                joined[choice["index"]] += choice["text"]
        assert joined == expected
    else:
        body = server.complete(prompt=prompt, max_tokens=8).json()
        assert {choice["index"]: choice["text"] for choice in body["choices"]} == expected
        assert body["usage"]["prompt_tokens"] == sum(len(text) for text in texts)


def test_choices_of_several_prompts_are_numbered_as_openai_does(server: RunningServer) -> None:
    body = server.complete(prompt=["ab", "c"], n=2, max_tokens=4).json()
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == [server.answer(text, 4) for text in ("ab", "ab", "c", "c")]
    assert body["usage"]["prompt_tokens"] == 3


def test_logprobs_shape(server: RunningServer) -> None:
    text = server.answer("Once", 16)
    logprobs = server.complete(prompt="Once", max_tokens=16, logprobs=2).json()["choices"][0]["logprobs"]
    tokenizer = server.words.tokenizer
    ids = server.answer_ids("Once", 16)
    assert logprobs["token_logprobs"] == [-(token_id + 1) / 1000 for token_id in ids]
    assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"]) == 16
    columns = [logprobs[name] for name in ("tokens", "top_logprobs", "text_offset")]
    for token_id, token, top, offset in zip(ids, *columns, strict=True):
        data = tokenizer.token_bytes(token_id)
        if token_id < 128:
            assert token == data.decode()
            assert text[offset] in (token, "\ufffd")  # the latter when bytes before it never became a character
        elif token_id < 256:  # part of a character: spelled in bytes, so that keys stay apart
            assert token == f"bytes:\\x{token_id:02x}"
        assert top[token] == -(token_id + 1) / 1000
        assert len(top) >= 2 or token_id >= 256
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])


def test_streamed_logprobs_equal_whole_ones(server: RunningServer) -> None:
    whole = server.complete(prompt="Once", max_tokens=24, logprobs=1).json()["choices"][0]["logprobs"]
    streamed: dict[str, list[Any]] = {name: [] for name in whole}
    for event in server.events("/v1/completions", prompt="Once", max_tokens=24, logprobs=1):
        for name, values in (event["choices"][0]["logprobs"] or {}).items():
            streamed[name] += values
    assert streamed == whole


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("prompt", ["abc de", [97, 98, 99, 32, 100, 101]])
@pytest.mark.parametrize("stream", [False, True])
def test_fr_044_echo(server: RunningServer, max_tokens: int, prompt: Any, stream: bool) -> None:
    fields = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    if stream:
        events = server.events("/v1/completions", **fields, stream_options={"include_usage": True})
        text = "".join(event["choices"][0]["text"] for event in events[:-1])
        parts = [event["choices"][0]["logprobs"] for event in events[:-1] if event["choices"][0]["logprobs"]]
        logprobs = {name: [value for part in parts for value in part[name]] for name in parts[0]}
        usage = events[-1]["usage"]
    else:
        response = server.complete(**fields)
        assert response.status_code == 200
        body = response.json()
        text, logprobs, usage = body["choices"][0]["text"], body["choices"][0]["logprobs"], body["usage"]
    assert text == "abc de" + server.answer("abc de", max_tokens)
    assert usage["completion_tokens"] == max_tokens
    assert usage["prompt_tokens"] == 6
    assert len(logprobs["tokens"]) == 6 + max_tokens
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:6] == [-(token_id + 1) / 1000 for token_id in b"bc de"]
    assert logprobs["text_offset"][:6] == [0, 1, 2, 3, 4, 5]
    assert logprobs["text_offset"][6:] == [6] * max_tokens


def test_echo_without_logprobs(server: RunningServer) -> None:
    choice = server.complete(prompt="abc", echo=True, max_tokens=3).json()["choices"][0]
    assert choice["text"] == "abc" + server.answer("abc", 3)
    assert choice["logprobs"] is None


def test_echo_leaves_out_the_bos_that_was_added() -> None:
    words = toy(add_bos=True)
    with running_server(scripted(words), words) as server:
        body = server.complete(prompt="abc", echo=True, logprobs=0, max_tokens=0).json()
        assert body["choices"][0]["text"] == "abc"
        assert body["usage"]["prompt_tokens"] == 4
        assert body["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1, 2]


def test_stock_client_streams(server: RunningServer) -> None:
    stream = server.openai.completions.create(model=MODEL, prompt="abc", max_tokens=30, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == server.answer("abc", 30)


def test_answers_of_concurrent_requests_do_not_mix(server: RunningServer) -> None:
    prompts = [f"prompt number {i}" for i in range(32)]
    body = server.complete(prompt=prompts, max_tokens=20, ignore_eos=True).json()
    assert [choice["text"] for choice in body["choices"]] == [server.answer(prompt, 20) for prompt in prompts]
