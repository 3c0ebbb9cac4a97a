"""Names that find an answer's ledger, and the ledgers of answers that went wrong."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from hasten.request import Ledger
from hasten.server.explain import LedgerRing
from tests.server.running import MODEL, RunningServer, running_server, scripted
from tests.support.toy_tokenizer import toy

BODY = {"model": MODEL, "prompt": "a", "max_tokens": 2}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_found_by_its_id_and_by_the_clients_word(server: RunningServer, stream: bool) -> None:
    answer = server.http.post("/v1/completions", json=BODY | {"stream": stream}, headers={"X-Request-Id": "run-7"})
    assert answer.headers["x-request-id"] == "run-7"
    found = server.http.get("/explain/run-7").json()
    assert found["id"] in answer.text
    assert server.http.get(f"/explain/{found['id']}").json() == found
    unnamed = server.http.post("/v1/completions", json=BODY | {"stream": stream})
    assert unnamed.headers["x-request-id"].startswith("cmpl-")
    assert unnamed.headers["x-request-id"] in unnamed.text


@pytest.mark.parametrize("word", ["x" * 129, "caf\xe9", ""])
def test_a_word_that_cannot_be_sent_back_is_none(server: RunningServer, word: str) -> None:
    answer = server.http.post("/v1/completions", json=BODY, headers=[("X-Request-Id", word.encode("latin-1"))])
    assert answer.headers["x-request-id"] == answer.json()["id"]


def ledger(name: str) -> list[Ledger]:
    return [Ledger(name, 1.0, None, None, 1, 0, 0)]


def test_words_are_each_clients_own_and_go_with_their_answers() -> None:
    ring = LedgerRing(max_ledgers=2)
    ring.add("a", b"one", ledger("a"), client_word="w")
    ring.add("b", b"two", ledger("b"), client_word="w")
    assert ring.get("w", b"one") == ring.get("a", b"one") == ledger("a")
    assert ring.get("w", b"two") == ledger("b")
    assert ring.get("a", b"two") is None
    ring.add("c", b"two", ledger("c"), client_word="w")  # a is forgotten
    assert ring.get("w", b"one") is None
    assert ring.get("w", b"two") == ledger("c")
    ring.add("d", b"two", ledger("d"))  # b is forgotten, its word is c's by now
    assert ring.get("w", b"two") == ledger("c")
    ring.add("e", b"two", ledger("e"))
    assert ring.get("w", b"two") is None
    assert not ring._words


def explained(server: RunningServer, name: str) -> dict[str, Any]:
    """The ledger, once it is there: nobody waits for that of an answer that nobody wanted to the end."""
    deadline = time.monotonic() + 20
    while (response := server.http.get(f"/explain/{name}")).status_code == 404:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    found: dict[str, Any] = response.json()
    return found


def test_a_cancelled_answer_is_explained() -> None:
    words = toy()
    with running_server(scripted(words, hold_after=5), words) as server:
        body = json.dumps(BODY | {"max_tokens": 100, "ignore_eos": True}).encode()
        with server.raw() as connection:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: gone\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(head % len(body) + body)
            while server.state.client.stats().num_generated_tokens < 5:
                time.sleep(0.002)
        found = explained(server, "gone")
    assert found["completion_tokens"] == 5
    assert [part["name"] for part in found["parts"]][:5] == ["parse", "tokenize", "queue", "prefill", "decode"]


def test_a_failed_answer_is_explained() -> None:
    words = toy()
    with running_server(scripted(words, fail_steps={3: RuntimeError("boom")}), words) as server:
        body = BODY | {"max_tokens": 100, "ignore_eos": True}
        assert server.http.post("/v1/completions", json=body, headers={"X-Request-Id": "failed"}).status_code == 500
        assert explained(server, "failed")["completion_tokens"] == 2
