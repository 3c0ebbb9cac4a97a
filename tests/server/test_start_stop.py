"""Signals while the model loads, and what is said before it is loaded."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.toy_gguf import toy_spec, write_toy_gguf

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", spec=toy_spec())


def signalled_while_loading(model: Path, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    """`hasten serve` that sends itself a signal when it opens the model's file."""
    code = (
        "import os, sys\n"
        "def hook(event, args):\n"
        f"    if event == 'open' and args[0] == sys.argv[2]: os.kill(os.getpid(), {int(number)})\n"
        "sys.addaudithook(hook)\n"
        "from hasten.cli import main\n"
        "main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "serve", str(model), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_sigterm_while_loading_is_a_line_and_exit_0(model: Path) -> None:
    """What an orchestrator sends when it changes its mind: an end that was asked for is no failure."""
    done = signalled_while_loading(model, signal.SIGTERM)
    assert (done.returncode, done.stderr) == (0, "hasten: stopped while loading\n")
    assert "ready" not in done.stdout


def test_ctrl_c_while_loading_is_exit_130(model: Path) -> None:
    done = signalled_while_loading(model, signal.SIGINT)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_sigterm_is_the_callers_again_when_serve_returns(model: Path) -> None:
    """A program that calls `serve` itself keeps its own handler."""
    from hasten.server.signals import sigterm_ends_loading

    mine = signal.signal(signal.SIGTERM, lambda number, frame: None)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with sigterm_ends_loading():
            assert signal.getsignal(signal.SIGTERM) is not handler
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, mine)


def test_the_first_lines_come_before_the_model_is_loaded(tmp_path: Path) -> None:
    """A file of many gigabytes takes its time; who waits sees for what."""
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + b"\xff" * 5000)
    done = subprocess.run(
        [sys.executable, "-m", "hasten.cli", "serve", str(damaged), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    version, loading = done.stdout.splitlines()
    assert re.fullmatch(r"hasten \d+\.\d+\.\d+\S*", version)
    assert loading == f"loading  {damaged} (4.9 KiB)"


def test_a_path_that_is_not_utf_8_is_served(tmp_path: Path) -> None:
    """Its name is shown with question marks, and every page that names it works."""
    import httpx

    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    path = write_toy_gguf(Path(os.fsdecode(folder)) / "toy.gguf", spec=toy_spec())
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:backslashreplace"}
    with subprocess.Popen(
        [sys.executable, "-m", "hasten.cli", "serve", str(path), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        try:
            assert server.stdout is not None
            url = next(line.split()[1] for line in server.stdout if line.startswith("ready"))
            names = [card["id"] for card in httpx.get(url + "/v1/models").json()["data"]]
            assert any("caf?" in name for name in names)
            for page in ("/", "/metrics", "/config", "/health"):
                assert httpx.get(url + page).status_code == 200, page
            body = {"model": names[-1], "prompt": "Hi", "max_tokens": 2}
            assert httpx.post(url + "/v1/completions", json=body, timeout=LIMIT_S).status_code == 200
        finally:
            server.terminate()
    assert server.returncode == 0
