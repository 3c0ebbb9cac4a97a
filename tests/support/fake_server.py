"""A server with known timings: it streams what a scenario says and records when it wrote each piece.

Runs in its own process (`FakeServer`), so that it shares neither loop nor GIL with the client under test. Its record is
taken on the same clock (CLOCK_MONOTONIC), so a test compares with what the server did, not with what it meant to do.

Scenario (JSON object), every key optional:
    first_ms, gap_ms, jitter_ms   time to the first piece with text, between pieces, and uniform jitter on each
    stagger_ms                    answer n begins n · stagger_ms later, modulo seven of them: users do not stay in step
    tokens, per_chunk             answer length and tokens in a piece
    text                          text of one token
    role_ms                       send a role-only piece at this time
    empty_first                   a first piece with empty text, at first_ms / 2
    usage                         "end", "every", "none"
    finish, done                  send finish_reason, send [DONE]
    slow_close_ms                 wait between [DONE] and the end of the body
    error_every                   every n-th request gets `error_status`
    reset_every, reset_after      every n-th request's connection is reset after so many pieces
    cut_every                     every n-th answer ends in the middle, the body properly closed
    garbage_every                 every n-th answer has an event that is no JSON
    freeze_at_s, freeze_s         the whole server stands still once, counted from the first request
    workers                       requests served at a time (the others wait), 0: all
    newline, split                line ends, and bytes per write (0: one write per piece)
    reasoning, tool               the first piece carries reasoning or a tool call instead of text
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEFAULTS: dict[str, Any] = {
    "first_ms": 20.0,
    "gap_ms": 5.0,
    "jitter_ms": 0.0,
    "stagger_ms": 0.0,
    "tokens": 10,
    "per_chunk": 1,
    "text": " word",
    "role_ms": None,
    "empty_first": False,
    "usage": "end",
    "finish": True,
    "done": True,
    "slow_close_ms": 0.0,
    "error_every": 0,
    "error_status": 500,
    "reset_every": 0,
    "reset_after": 2,
    "cut_every": 0,
    "garbage_every": 0,
    "freeze_at_s": None,
    "freeze_s": 0.0,
    "workers": 0,
    "newline": "\n",
    "split": 0,
    "reasoning": False,
    "tool": False,
    "tokenize": "hasten",
}


class FakeServer:
    """`with FakeServer(tokens=5) as server:` runs one in a process of its own; `server.url`, `server.log()`."""

    def __init__(self, **scenario: Any) -> None:
        unknown = set(scenario) - set(DEFAULTS)
        assert not unknown, f"unknown scenario keys {unknown}"
        self._scenario = scenario
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> FakeServer:
        command = [sys.executable, "-m", "tests.support.fake_server_process", json.dumps(self._scenario)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def log(self) -> list[dict[str, Any]]:
        """One entry per completion request, in order of arrival: id, received_ns, stamped_by, chunk_ns, done_ns, body.

        `stamped_by` is the clock of `received_ns`: "kernel", or "loop" (later) where the kernel gives no stamp.
        """
        with urllib.request.urlopen(f"{self.url}/log") as answer:
            log: list[dict[str, Any]] = json.load(answer)
        return log
