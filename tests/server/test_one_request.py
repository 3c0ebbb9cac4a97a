"""One request, however it is made, does not stop the loop for the others: what is long runs in a thread or in slices."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from hasten.engine.admission import Limits
from hasten.server.generation import Generation
from hasten.tokenizer.stop_matcher import StopMatcher
from tests.server.running import MODEL, RunningServer, running_server, scripted
from tests.support.toy_tokenizer import toy

NUM_CHOICES = 128
MAX_GAP_S = 0.1  # of processor time; each of these took 1 s and more in one piece


def send(server: RunningServer, **fields: Any) -> Any:
    body = json.dumps({"model": MODEL, "max_tokens": 1, "n": NUM_CHOICES, **fields}).encode()
    connection = server.raw()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    connection.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
    return connection


def wait_open(server: RunningServer, num_open: int) -> None:
    deadline = time.monotonic() + 20
    while server.state.client.stats().num_open != num_open:
        assert time.monotonic() < deadline, server.state.client.stats()
        time.sleep(0.002)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "Hi", "stop": [chr(97 + i) * 511 + "!" for i in range(16)]},
        {"prompt": [5] * 100_000},
    ],
    ids=["stop strings", "a long prompt"],
)
def test_many_choices_do_not_stop_the_loop(fields: dict[str, Any]) -> None:
    words, gate = toy(num_padding=1000), threading.Event()
    executor = scripted(words, gate=gate, max_model_len=200_000, num_blocks=8192)  # the gate: only the server is looked at
    with running_server(executor, words) as server:
        server.max_loop_gap_s = 0.0
        with send(server, **fields):
            wait_open(server, NUM_CHOICES)
            assert server.max_loop_gap_s < MAX_GAP_S
        server.wait_idle(20.0)
        gate.set()


def test_stop_strings_are_prepared_once_for_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = StopMatcher.__init__
    monkeypatch.setattr(StopMatcher, "__init__", lambda self, stops: made.append(stops) or make(self, stops))
    words = toy()
    with running_server(scripted(words), words) as server:
        for stop in (["x"], ["y" * 600]):
            assert server.complete(n=5, max_tokens=3, stop=stop).status_code == 200
        assert server.complete(n=5, max_tokens=3).status_code == 200
    assert made == [("x",), ("y" * 600,)]


def test_a_prompt_is_checked_once_for_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    check = Limits.check_prompt
    monkeypatch.setattr(Limits, "check_prompt", lambda self, ids: checked.append(len(ids)) or check(self, ids))
    words = toy()
    with running_server(scripted(words), words) as server:
        assert server.complete(prompt=[5, 6, 7], n=NUM_CHOICES, max_tokens=1).status_code == 200
    assert checked == [3, 3]  # by the server, which can name the field, and by the engine, which trusts nobody


def test_who_leaves_while_choices_are_queued_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client goes away when the third of 128 is submitted: no more are."""
    submitted = []
    make = Generation._request  # there is no other place between two submits

    def request(self: Generation, choice: Any) -> Any:
        submitted.append(choice.index)
        if len(submitted) == 3:
            self.abandon()
        return make(self, choice)

    monkeypatch.setattr(Generation, "_request", request)
    words = toy()
    with running_server(scripted(words, hold_after=0), words) as server, send(server, prompt="Hi", max_tokens=50):
        deadline = time.monotonic() + 20
        while len(submitted) < 3 and time.monotonic() < deadline:
            time.sleep(0.002)
        server.wait_idle(20.0)
        assert submitted == [0, 1, 2]
