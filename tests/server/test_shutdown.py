"""Signals: drain, refuse, end; no traceback, no child left. The server runs in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.server.process import in_background, process, started


def test_fr_054_running_and_queued_answers_finish_and_new_ones_are_refused() -> None:
    with process(step_s=0.02, grace_s=60) as server:
        streams = [in_background(lambda: server.post(max_tokens=3000, stream=True)) for _ in range(3)]
        started(server, 3)
        queued, answer = in_background(lambda: server.post(max_tokens=2))
        started(server, 3, 1)
        server.signal(signal.SIGTERM)
        server.wait_draining()
        refused = server.post(max_tokens=1)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "engine_stopped"
        assert httpx.get(server.url + "/ready").status_code == 503
        assert httpx.get(server.url + "/health").status_code == 200
        server.hurry()
        for thread, results in streams:
            thread.join(20)
            assert results[0].text.endswith("data: [DONE]\n\n")
            assert '"finish_reason":"length"' in results[0].text
        queued.join(20)
        assert answer[0].status_code == 200
        code, errors = server.wait(2)
        assert code == 0
        assert "finishing 4 answers" in errors


def test_fr_054_after_the_grace_time_streams_end_with_an_error_event() -> None:
    with process(step_s=0.02, grace_s=0.5) as server:
        streams = [in_background(lambda: server.post(max_tokens=1000, stream=True)) for _ in range(3)]
        started(server, 3)
        queued, answer = in_background(lambda: server.post(max_tokens=2))
        started(server, 3, 1)
        signalled = time.monotonic()
        server.signal(signal.SIGTERM)
        code, _ = server.wait(0.5 + 1)
        assert time.monotonic() - signalled < 0.5 + 1
        assert code == 0
        for thread, results in streams:
            thread.join(5)
            *_, error, done, end = results[0].text.split("\n\n")
            assert (done, end) == ("data: [DONE]", "")
            assert json.loads(error[6:])["error"]["code"] == "engine_stopped"
        queued.join(5)
        assert answer[0].status_code == 503


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_fr_054_a_second_signal_ends_it_at_once(number: signal.Signals) -> None:
    with process(step_s=0.02, grace_s=60) as server:
        thread, _ = in_background(lambda: server.post(max_tokens=3000, stream=True))
        started(server, 1)
        server.signal(number)
        server.wait_draining()
        assert server.popen.poll() is None
        second = time.monotonic()
        server.signal(number)
        code, _ = server.wait(1)
        assert time.monotonic() - second < 0.5
        assert code == 128 + number
        thread.join(5)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_an_idle_server_ends_soon_and_quietly(number: signal.Signals, expected: int) -> None:
    with process(step_s=0.0, grace_s=30) as server:
        assert server.post(max_tokens=2).status_code == 200
        with httpx.Client(base_url=server.url) as kept_alive:
            kept_alive.get("/health")
            server.signal(number)
            code, errors = server.wait(2)
        assert code == expected
        assert errors == ""


def test_port_in_use_is_one_line_and_exit_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from hasten.config import EngineConfig, ServerConfig
    from hasten.server.run import serve
    from hasten.weights.registry import ResolvedModel

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # the port is looked at before the file is
        model = ResolvedModel(tmp_path / "none.gguf", "none", (), "", "")
        assert serve(model, EngineConfig(), ServerConfig(port=port)) == 1
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert f"port {port} on 127.0.0.1 is in use" in output.err


def test_warnings_have_a_time_and_a_level() -> None:
    """What the server logs goes to stderr, so that a line can be set beside what else happened then."""
    code = (
        "import logging\n"
        "from hasten.server.run import _set_up_logging\n"
        "_set_up_logging(access_log=False)\n"
        "logging.getLogger('hasten.engine').warning('step 7 took 12 s')\n"
        "logging.getLogger('hasten.engine').info('nobody wants to know')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING hasten.engine: step 7 took 12 s\n", done.stderr)
