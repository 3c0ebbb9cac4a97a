"""Models, tokens, health, metrics, configuration, ledgers, keys, CORS and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest

import hasten
from hasten.config import ServerConfig
from hasten.engine.ledger import DECODE, HELD, PREEMPTED, PREFILL, QUEUE
from hasten.server.auth import configured_keys
from tests.server.running import MODEL, RunningServer, running_server
from tests.support.toy_tokenizer import toy


def test_models(server: RunningServer) -> None:
    listed = server.openai.models.list().data
    assert [model.id for model in listed] == [MODEL, "toy-alias"]
    assert server.openai.models.retrieve("toy-alias").id == "toy-alias"
    with pytest.raises(openai.NotFoundError, match="toy-alias"):
        server.openai.models.retrieve("nothing/like-it")


def test_version(server: RunningServer) -> None:
    assert server.http.get("/version").json() == {"version": hasten.__version__}


def test_names_with_slashes_are_found() -> None:
    config = ServerConfig(served_model_name=("org/some model",))
    with running_server(server_config=config) as server:
        assert server.openai.models.retrieve("org/some model").id == "org/some model"


def test_tokenize_and_back(server: RunningServer) -> None:
    text = "Grüße, 世界 " * 300
    body = server.http.post("/tokenize", json={"prompt": text}).json()
    assert body["tokens"] == list(text.encode())
    assert body["count"] == len(text.encode())
    assert body["max_model_len"] == 2048
    assert server.http.post("/detokenize", json={"tokens": body["tokens"]}).json() == {"prompt": text}


def test_tokenize_with_texts(server: RunningServer) -> None:
    body = server.http.post("/tokenize", json={"prompt": "né", "return_token_strs": True, "chat_template": None}).json()
    assert body["token_strs"] == [server.words.tokenizer.token_bytes(i).decode(errors="replace") for i in body["tokens"]]
    assert server.http.post("/tokenize", json={"prompt": "né"}).json()["token_strs"] is None


def test_tokenize_a_conversation(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = server.http.post("/tokenize", json={"messages": messages}).json()
    assert body["count"] == server.chat(messages=messages, max_tokens=1).json()["usage"]["prompt_tokens"]
    without = server.http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert without["tokens"] == body["tokens"][: without["count"]]
    assert without["count"] < body["count"]


def test_tokenize_adds_special_tokens_unless_told_not_to() -> None:
    words = toy(add_bos=True)
    with running_server(words=words) as server:
        assert server.http.post("/tokenize", json={"prompt": "a"}).json()["tokens"] == [words.bos, 97]
        assert server.http.post("/tokenize", json={"prompt": "a", "add_special_tokens": False}).json()["tokens"] == [97]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a" * (2**20 + 1)}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "add_special_token": True}, 400, "add_special_token"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, 400, "continue_final_message"),
        ("/detokenize", {"tokens": [1], "skip_special_tokens": 1}, 400, "skip_special_tokens"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [10**7]}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
def test_bad_token_requests(server: RunningServer, path: str, body: dict[str, Any], status: int, param: str) -> None:
    response = server.http.post(path, json=body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param


def test_health_and_ready(server: RunningServer) -> None:
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/ready").status_code == 200


def test_config_shows_everything_but_keys() -> None:
    config = ServerConfig(api_key=("secret-of-ours",))
    with running_server(server_config=config, api_keys=("secret-of-ours",)) as server:
        response = server.http.get("/config", headers={"Authorization": "Bearer secret-of-ours"})
        body = response.json()
        assert "secret" not in response.text
        assert body["server"]["num_api_keys"] == 1
        assert body["limits"]["max_model_len"] == 4096
        assert body["engine"]["batching"] == "continuous"
        assert body["sampling_defaults"]["temperature"] == 1.0


def test_ledger_adds_up_and_is_kept(server: RunningServer) -> None:
    body = server.chat(max_tokens=5, hasten={"explain": True}).json()
    ledger = body["hasten"]["explain"]
    names = [part["name"] for part in ledger["parts"]]
    assert names == ["parse", "tokenize", "queue", "prefill", "decode", "deliver"]
    position = 0.0
    for part in ledger["parts"]:
        assert part["start_ms"] == pytest.approx(position, abs=1e-6)
        assert part["ms"] >= 0
        position += part["ms"]
    assert position == pytest.approx(ledger["wall_ms"], abs=1e-6)
    assert ledger["id"] == body["id"]
    assert ledger["completion_tokens"] == 5
    assert ledger["prompt_tokens"] == body["usage"]["prompt_tokens"]
    assert 0 < ledger["ttft_ms"] < ledger["wall_ms"]
    assert server.http.get(f"/explain/{body['id']}").json() == ledger


def test_the_example_in_the_docs_has_the_fields_that_are_sent(server: RunningServer) -> None:
    text = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
    example = json.loads(text.partition("```json")[2].partition("```")[0])
    sent = server.chat(max_tokens=5, hasten={"explain": True}).json()["hasten"]["explain"]

    def fields(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: fields(item) for name, item in value.items()}
        return [fields(item) for item in value] if isinstance(value, list) else None

    assert fields(example) == fields(sent)
    assert [part["name"] for part in example["parts"]] == [part["name"] for part in sent["parts"]]
    position = 0.0
    for part in example["parts"]:  # an example that does not add up would teach the wrong thing
        assert part["start_ms"] == pytest.approx(position)
        position += part["ms"]
    assert position == pytest.approx(example["wall_ms"])
    assert example["tpot_ms"] == pytest.approx(example["parts"][4]["ms"] / 48, abs=0.05)
    for name in (QUEUE, PREFILL, DECODE, PREEMPTED, HELD, "parse", "tokenize", "deliver"):
        assert f"| `{name}` |" in text


def test_ledger_is_in_the_last_chunk_of_a_stream(server: RunningServer) -> None:
    for options in ({}, {"stream_options": {"include_usage": True}}):
        events = server.events("/v1/completions", prompt="a", max_tokens=4, hasten={"explain": True}, **options)
        assert [index for index, event in enumerate(events) if "hasten" in event] == [len(events) - 1]
        ledger = events[-1]["hasten"]["explain"]
        assert sum(part["ms"] for part in ledger["parts"]) == pytest.approx(ledger["wall_ms"], abs=1e-6)


def test_ledger_counts_what_the_client_got(server: RunningServer) -> None:
    text = server.answer("ab", 30)
    body = server.complete(prompt="ab", stop=text[2:4], max_tokens=30, hasten={"explain": True}).json()
    assert body["choices"][0]["text"] == text[:2]
    assert body["hasten"]["explain"]["completion_tokens"] == body["usage"]["completion_tokens"] < 20


def test_several_choices_have_a_ledger_each(server: RunningServer) -> None:
    body = server.complete(prompt="a", n=2, max_tokens=2, hasten={"explain": True}).json()
    assert [ledger["id"] for ledger in body["hasten"]["explain"]] == [f"{body['id']}-0", f"{body['id']}-1"]


def test_ledger_is_not_sent_unasked_but_kept(server: RunningServer) -> None:
    body = server.complete(max_tokens=2).json()
    assert "explain" not in body["hasten"]
    assert server.http.get(f"/explain/{body['id']}").json()["completion_tokens"] == 2
    assert server.http.get("/explain/cmpl-nothing").status_code == 404


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def test_keys() -> None:
    with running_server(api_keys=("first", "second")) as server:
        for headers in (
            {},
            key("wrong"),
            {"Authorization": "Bearer"},
            {"Authorization": "first"},
            {"Authorization": "Basic first"},
        ):
            for path in ("/v1/models", "/metrics", "/config", "/explain/x"):
                response = server.http.get(path, headers=headers)
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert response.json()["error"]["code"] == "invalid_api_key"
        for path in ("/health", "/ready", "/"):
            assert server.http.get(path).status_code == 200
        assert MODEL not in server.http.get("/").text.partition("<script>")[0].replace("toymodel", "")
        assert server.http.get("/v1/models", headers={"Authorization": "bearer second"}).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            server.openai.models.list()
        assert server.openai.with_options(api_key="first").models.list().data


def test_keys_are_those_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_API_KEY", "d")  # the command line reads it, into the config
    assert configured_keys(()) == ()
    assert configured_keys(("a", "c", "", "a")) == ("a", "c")


def test_a_ledger_is_for_the_key_that_asked() -> None:
    with running_server(api_keys=("first", "second")) as server:
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
        public_id = server.http.post("/v1/completions", json=body, headers=key("first")).json()["id"]
        assert server.http.get(f"/explain/{public_id}", headers=key("first")).status_code == 200
        other, unknown = (server.http.get(f"/explain/{name}", headers=key("second")) for name in (public_id, public_id[::-1]))
        assert other.status_code == unknown.status_code == 404
        assert other.json()["error"]["message"].replace(public_id, "") == unknown.json()["error"]["message"].replace(
            public_id[::-1], ""
        )


def test_cors_is_off_unless_asked_for(server: RunningServer) -> None:
    origin = {"Origin": "http://app.test"}
    assert "access-control-allow-origin" not in server.http.get("/health", headers=origin).headers
    with running_server(server_config=ServerConfig(cors=("http://app.test",)), api_keys=("k",)) as other:
        response = other.http.get("/v1/models", headers=origin)
        assert response.status_code == 401
        assert response.headers["access-control-allow-origin"] == "http://app.test"
        assert "access-control-allow-origin" not in other.http.get("/health", headers={"Origin": "http://evil.test"}).headers
        preflight = other.http.options(
            "/v1/chat/completions",
            headers=origin | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"},
        )
        assert preflight.status_code == 200


def test_a_bug_is_told_to_a_page_that_may_ask(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without CORS headers the page could not read the error."""
    with running_server(server_config=ServerConfig(cors=("http://app.test",))) as server:
        monkeypatch.setattr(server.state.metrics, "render", lambda: 1 // 0)
        response = server.http.get("/metrics", headers={"Origin": "http://app.test"})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
        assert response.headers["access-control-allow-origin"] == "http://app.test"
        assert "division" not in response.text
    assert [record.exc_info is not None for record in caplog.records if record.name == "hasten.server"] == [True]


def test_page_stands_alone(server: RunningServer) -> None:
    response = server.http.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert MODEL in response.text
    assert 'name="viewport"' in response.text
    assert not re.search(r"""(?:src|href)\s*=|url\(|https?://""", response.text)
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_page_escapes_names() -> None:
    with running_server(server_config=ServerConfig(served_model_name=('<b>"x',))) as server:
        page = server.http.get("/").text
        assert "<b>" not in page
        assert "&lt;b&gt;" in page
