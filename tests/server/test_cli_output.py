"""What the command line writes where: terminals, pipes, encodings, and outputs that cannot take it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest

from tests.server.cli_process import HASTEN, LIMIT_S, hasten


def test_no_colour_in_a_pipe(environment: dict[str, str], model: Path) -> None:
    done = hasten(environment, "generate", str(model), "-p", "hi", "--max-tokens", "2", "--ignore-eos")
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x1b" not in hasten(environment, "--help").stdout


@pytest.mark.parametrize("no_color", ["", "1"])
def test_terminal_gets_colour_unless_told_otherwise(environment: dict[str, str], model: Path, no_color: str) -> None:
    environment |= {"NO_COLOR": no_color, "TERM": "xterm"}
    shown = on_a_terminal(environment, "generate", str(model), "-p", "hi", "--max-tokens", "2", "--ignore-eos")
    assert "TTFT" in shown
    assert ("\x1b[2m" in shown) == (not no_color)


def test_terminal_says_that_the_model_is_loading(environment: dict[str, str], model: Path) -> None:
    """And takes it away again before the answer."""
    shown = on_a_terminal(environment, "generate", str(model), "-p", "hi", "--max-tokens", "2", "--ignore-eos")
    assert f"loading {model}\r\x1b[K" in shown
    piped = hasten(environment, "generate", str(model), "-p", "hi", "--max-tokens", "2", "--ignore-eos")
    assert "loading" not in piped.stdout + piped.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_encoding_does_not_have_is_escaped(environment: dict[str, str], model: Path, encoding: str) -> None:
    arguments = ["generate", str(model), "-p", "hi", "--max-tokens", "40", "--ignore-eos", "--seed", "1", "--temperature", "3"]
    plain = hasten(environment | {"PYTHONIOENCODING": "utf-8"}, *arguments).stdout
    done = subprocess.run(
        [*HASTEN, *arguments],
        env=environment | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not plain.isascii(), "else this shows nothing"
    assert done.stdout == plain.encode(encoding, "backslashreplace")


def on_a_terminal(environment: dict[str, str], *arguments: str) -> str:
    """What a command shows on a terminal; it must end well."""
    master, slave = pty.openpty()
    process = subprocess.Popen([*HASTEN, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    try:
        shown = read_to_end(master)
        assert process.wait(LIMIT_S) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return shown


def read_to_end(terminal: int) -> str:
    """Everything until the other side closes."""
    data = b""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # a terminal says so when its last user is gone
            break
        data += chunk
    return data.decode()


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("command", ["--version", "--help", "models", "generate MODEL -p hi --max-tokens 2"])
def test_standard_output_that_is_full(environment: dict[str, str], model: Path, command: str, buffered: str) -> None:
    arguments = command.replace("MODEL", str(model)).split()
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*HASTEN, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment | {"PYTHONUNBUFFERED": buffered},
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"hasten: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("command", ["--version", "models", "generate MODEL -p hi"])
def test_standard_output_that_is_closed(environment: dict[str, str], model: Path, command: str) -> None:
    arguments = command.replace("MODEL", str(model)).split()
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *HASTEN, *arguments],
        stderr=subprocess.PIPE,
        env=environment,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == b"hasten: standard output is closed: there is nowhere to write the answer\n"


def test_reader_that_goes_away(environment: dict[str, str], model: Path) -> None:
    arguments = ["generate", str(model), "-p", "hi", "--ignore-eos", "--executor", "reference"]
    process = subprocess.Popen([*HASTEN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(LIMIT_S), err) == (1, b"")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
