"""`make demo`: fetch the demo model, start the server, ask it one question through the official client, show its timing."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from hasten.cli.terminal import ProgressLine
from hasten.weights.registry import resolve

MODEL = "smollm2"
QUESTION = "Write one sentence about the sea."
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
BAR_CHARS = 40


@contextmanager
def server() -> Iterator[str]:
    """A running `hasten serve`, as its address; SIGTERM at the end, and it must then end by itself with exit code 0."""
    command = [sys.executable, "-m", "hasten.cli", "serve", MODEL, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    deadline = threading.Timer(START_TIMEOUT_S, process.kill)
    deadline.start()
    try:
        yield wait_until_ready(process)
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_TIMEOUT_S)
        if code != 0:
            raise SystemExit(f"the server ended with exit code {code}")
        print("server stopped")
    finally:
        deadline.cancel()
        process.kill()
        process.wait()


def wait_until_ready(process: subprocess.Popen[str]) -> str:
    """Pass on the server's start-up lines up to the one with its address, which is returned."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"  {line}", end="")
        if found := re.match(r"ready\s+(http://\S+)", line):
            return found[1]
    raise SystemExit(f"the server ended with exit code {process.wait()} before it was ready")


def ask(url: str) -> dict[str, object]:
    """Print the answer as it streams; returns the ledger that came with its last chunk."""
    print(f"\n> {QUESTION}\n")
    ledger: dict[str, object] | None = None
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        chunks = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": QUESTION}],
            stream=True,
            max_tokens=64,
            temperature=0,
            extra_body={"hasten": {"explain": True}},
        )
        for chunk in chunks:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
            extra = (chunk.model_extra or {}).get("hasten")
            if extra and extra.get("explain"):
                ledger = extra["explain"]
    if ledger is None:
        raise SystemExit("\nthe answer came without its timing")
    return ledger


def show(ledger: dict[str, object]) -> None:
    """The breakdown: a line and a bar for each part of the wall time."""
    number = {key: value for key, value in ledger.items() if isinstance(value, (int, float))}
    print(f"\n\nTTFT {number['ttft_ms']:.1f} ms, TPOT {number.get('tpot_ms', 0):.2f} ms", end="")
    print(f", {number['prompt_tokens']} prompt + {number['completion_tokens']} answer tokens, {number['wall_ms']:.1f} ms:")
    parts = ledger["parts"]
    assert isinstance(parts, list)
    for part in parts:
        length = round(BAR_CHARS * part["ms"] / max(number["wall_ms"], 1e-9))
        print(f"  {part['name']:<10} {part['ms']:9.2f} ms  {'█' * length}")
    print(f"  {'sum':<10} {sum(part['ms'] for part in parts):9.2f} ms\n")


def main() -> int:
    with ProgressLine(f"pulling {MODEL}") as progress:
        resolve(MODEL, fetch=True, progress=progress)
    with server() as url:
        show(ask(url))
    return 0


if __name__ == "__main__":
    sys.exit(main())
