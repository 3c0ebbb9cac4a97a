"""A server with a scripted engine in a process of its own, for signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[2]


class Process:
    def __init__(self, popen: subprocess.Popen[str], url: str) -> None:
        self.popen = popen
        self.url = url

    def post(self, **fields: Any) -> httpx.Response:
        body = {"model": "toy", "prompt": "Hi", "ignore_eos": True, **fields}
        return httpx.post(self.url + "/v1/completions", json=body, timeout=30)

    def hurry(self) -> None:
        """Steps take no time from here on."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def wait_draining(self) -> None:
        """Until the signal was taken."""
        deadline = time.monotonic() + 20
        while httpx.get(self.url + "/ready").status_code != 503:
            assert time.monotonic() < deadline, "the signal was not taken"
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, timeout_s: float) -> tuple[int, str]:
        """Exit code and stderr; the process must end by itself and leave no child."""
        children = psutil.Process(self.popen.pid).children(recursive=True)
        _, errors = self.popen.communicate(timeout=timeout_s)
        assert not [child for child in children if child.is_running()]
        assert "Traceback" not in errors, errors
        return self.popen.returncode, errors


@contextmanager
def process(step_s: float, grace_s: float) -> Iterator[Process]:
    command = [sys.executable, "-m", "tests.server.scripted_process", str(step_s), str(grace_s)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    popen = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert popen.stdout is not None
        line = popen.stdout.readline()
        assert line.startswith("ready"), line + (popen.stderr.read() if popen.stderr else "")
        yield Process(popen, line.split()[1])
    finally:
        if popen.poll() is None:
            popen.kill()
        popen.communicate()


def in_background(target: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(target())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def started(server: Process, num_running: int, num_waiting: int = 0) -> None:
    """Wait until that many run and wait."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        text = httpx.get(server.url + "/metrics").text
        if (
            f'hasten_num_requests_running{{model_name="toy"}} {float(num_running)}' in text
            and f'hasten_num_requests_waiting{{model_name="toy"}} {float(num_waiting)}' in text
        ):
            return
        time.sleep(0.01)
    raise AssertionError("the requests did not start")
