"""What errors and warnings say: short whatever the client sent, in the client's own words, with the range or the index."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.refusals import CHAT, HELLO, TEXT
from tests.server.running import MODEL, RunningServer

LONG = "y" * 50_000


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"model": LONG}),
        (CHAT, {"messages": [{"role": LONG, "content": "x"}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
        (CHAT, {"hasten": {LONG: 1}}),
        (CHAT, {"hasten": {f"a - at `$.{LONG}": 1}}),
        (CHAT, {"tools": LONG}),
        (TEXT, {"logit_bias": {LONG: 1}}),
        (TEXT, {"logit_bias": {LONG: "x"}}),
        (TEXT, {"stop": {LONG: 1}}),
        (TEXT, {"seed": 10**4000}),
        (TEXT, {"n": -(10**4000)}),
        (TEXT, {"prompt": [10**4000]}),
        ("/tokenize", {"model": LONG}),
        ("/v1/" + LONG[:5000], {}),
    ],
)
def test_errors_quote_little(server: RunningServer, path: str, fields: dict[str, Any]) -> None:
    own = {"messages": HELLO} if path == CHAT else {"prompt": "Hi"}
    response = server.http.post(path, json={"model": MODEL, **own, **fields})
    assert response.status_code in (400, 404)
    assert "y" * 101 not in response.text
    assert len(response.text) < 600


def test_other_places_quote_little_too(server: RunningServer) -> None:
    answers = (
        server.http.get(f"/explain/{LONG[:5000]}"),
        server.http.get(f"/v1/models/{LONG[:5000]}"),
        server.http.post(TEXT, content=b"{}", headers={"content-type": LONG[:5000]}),
        server.http.post(TEXT, content=b'{"%s":1,"%s":2}' % (LONG.encode(), LONG.encode())),
    )
    for response in answers:
        assert response.status_code in (400, 404)
        assert "y" * 101 not in response.text


def test_warnings_are_few_and_short(server: RunningServer) -> None:
    unknown = {f"z{i:04}{'z' * 500}": 1 for i in range(3000)}
    warnings = server.complete(max_tokens=1, **unknown).json()["hasten"]["warnings"]
    assert len(warnings) == 21
    assert all(len(warning) < 160 for warning in warnings)
    assert warnings[-1].startswith("2980 more fields")
    assert len(server.complete(max_tokens=1, **dict(list(unknown.items())[:20])).json()["hasten"]["warnings"]) == 20


@pytest.mark.parametrize(
    "bad", [b'"wibble":"\xff"', b'"wib\xffble":1', b'"wibble":["\xed\xa0\x80"]', b'"wibble":"\xc3"', b'"user":"\xc0\x80"']
)
@pytest.mark.parametrize("padding", [0, 131_000, 131_072, 300_000])
def test_bytes_that_are_not_utf8_anywhere(server: RunningServer, bad: bytes, padding: int) -> None:
    body = b'{"model":"toy","max_tokens":1,"prompt":"Hi","user2":"' + b" " * padding + b'",' + bad + b"}"
    with pytest.raises(UnicodeDecodeError) as oracle:
        body.decode()
    response = server.http.post(TEXT, content=body)
    assert response.status_code == 400, response.text
    assert f"UTF-8 at byte {oracle.value.start}" in response.json()["error"]["message"]


def test_utf8_may_be_cut_by_a_slice(server: RunningServer) -> None:
    for shift in range(4):
        fields = {"model": MODEL, "prompt": "Hi", "max_tokens": 1, "user": "x" * shift + "\U0001f600" * 70_000}
        response = server.http.post(TEXT, content=json.dumps(fields, ensure_ascii=False).encode())
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("value", [-1, 2**31, 5_000_000_000, 10**30])
def test_max_completion_tokens_keeps_its_name(server: RunningServer, value: int) -> None:
    error = server.chat(max_completion_tokens=value).json()["error"]
    assert error["param"] == "max_completion_tokens"
    assert error["message"].startswith("max_completion_tokens")
    assert "[0, 2147483647]" in error["message"]


@pytest.mark.parametrize(
    ("field", "number", "words"),
    [
        ("temperature", "1e400", "[0, 100]"),
        ("seed", "1" + "0" * 30, "18446744073709551615]"),
        ("top_k", "1" + "0" * 30, "[-1, 2147483647]"),
    ],
)
def test_out_of_range_says_the_range(server: RunningServer, field: str, number: str, words: str) -> None:
    body = f'{{"model":"toy","prompt":"Hi","{field}":{number}}}'
    error = server.http.post(TEXT, content=body.encode()).json()["error"]
    assert error["param"] == field
    assert words in error["message"]


def test_an_empty_prompt_is_named_by_its_index(server: RunningServer) -> None:
    for prompt in (["fine", ""], [[97], []]):
        error = server.complete(prompt=prompt).json()["error"]
        assert (error["param"], error["message"]) == ("prompt", "prompt[1] is empty: it needs at least one token")
    for single in ("", [""], [[]]):
        assert "is empty" in server.complete(prompt=single).json()["error"]["message"]
