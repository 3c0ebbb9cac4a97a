"""The command line as a process: exit codes, signals, start-up cost, a whole server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.cli_process import HASTEN, LIMIT_S, assert_one_line, hasten, serving


def test_version_and_help_import_no_engine(environment: dict[str, str]) -> None:
    """What is imported is what start-up costs: numpy, the server and the HTTP client are for commands that need them."""
    code = (
        "import sys; from hasten.cli import main; sys.argv = ['hasten', *sys.argv[1:]]\n"
        "try: main()\n"
        "finally: print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    heavy = ("numpy", "uvicorn", "starlette", "httpx", "tokenizers", "jinja2", "asyncio", "hasten._kernels", "torch")
    for argument, unwanted in (("--version", (*heavy, "cyclopts", "rich")), ("--help", heavy)):
        done = subprocess.run(
            [sys.executable, "-c", code, argument], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        assert done.stdout
        imported = done.stderr
        assert [name for name in unwanted if f"'{name}'" in imported] == []


def test_numpy_starts_no_threads_beside_the_compute_team(environment: dict[str, str]) -> None:
    code = (
        "import os, sys; from hasten.cli import main\n"
        "try: main()\n"
        "finally: print('numpy' in sys.modules, len(os.listdir('/proc/self/task')), file=sys.stderr)"
    )
    clean = {name: value for name, value in environment.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code, "models"], env=clean, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stderr.splitlines()[-1] == "True 1"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("serve", "MODEL", "--isa", "mmx"), 2, '"mmx" for --isa'),
        (("serve", "MODEL", "--threads", "-1", "--port", "0"), 2, "--threads is -1"),
        (("serve", "MODEL", "--memory", "banana", "--port", "0"), 2, "'banana' is not a size"),
        (("serve", "MODEL", "--port", "70000"), 2, "--port is 70000"),
        (("serve", "gone.gguf"), 2, "no such file: 'gone.gguf'"),
        (("generate", "FOLDER", "-p", "x"), 1, "is a folder, expected a GGUF file"),
        (("generate", "MODEL", "-p", "x", "--temperature", "nan"), 2, "temperature must be a finite number"),
        (("generate", "MODEL", "-p", "x", "--memory", "20KB"), 4, "--memory"),
    ],
)
def test_bad_options(
    environment: dict[str, str], model: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    places = {"MODEL": str(model), "FOLDER": str(tmp_path)}
    assert_one_line(hasten(environment, *(places.get(word, word) for word in arguments)), code, words)


def test_port_in_use(environment: dict[str, str], model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_one_line(hasten(environment, "serve", str(model), "--port", port), 1, f"port {port} on 127.0.0.1 is in use")


@pytest.mark.parametrize("cut", ["half", "99 percent", "one byte", "header"])
def test_fr_036_cut_off_file_ends_generate_at_once(environment: dict[str, str], model: Path, tmp_path: Path, cut: str) -> None:
    whole = model.read_bytes()
    keep = {"half": len(whole) // 2, "99 percent": len(whole) * 99 // 100, "one byte": len(whole) - 1, "header": 40}[cut]
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:keep])
    before_s = cpu_seconds()
    hasten(environment, "generate", str(tmp_path / "gone.gguf"), "-p", "x")  # the interpreter and its imports alone
    between_s = cpu_seconds()
    done = hasten(environment, "generate", str(path), "-p", "x")
    # CPU time: the clock would count what else the machine does
    assert (cpu_seconds() - between_s) - (between_s - before_s) < 1.0, "seconds"
    assert_one_line(done, 1, "cut.gguf")
    assert re.search(r"\d", done.stderr), "a size is named"


def cpu_seconds() -> float:
    """CPU time of all children that ended."""
    times = os.times()
    return times.children_user + times.children_system


def test_debug_shows_the_traceback(environment: dict[str, str]) -> None:
    done = hasten(environment | {"HASTEN_DEBUG": "1"}, "serve", "gone.gguf")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "UnknownModel: no such file" in done.stderr


def test_ctrl_c_ends_generate_with_what_there_is(environment: dict[str, str], model: Path) -> None:
    arguments = ["generate", str(model), "-p", "hi", "--ignore-eos", "--executor", "reference"]
    process = subprocess.Popen([*HASTEN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    try:
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (130, b"")
    assert (first + rest).endswith(b"\n")


@pytest.mark.parametrize("imported", ["threading", "cyclopts.parameter", "hasten.cli.terminal", "numpy.lib", "jinja2.lexer"])
def test_ctrl_c_during_the_imports_is_silent(environment: dict[str, str], model: Path, imported: str) -> None:
    """The process interrupts itself there: from outside it would be somewhere else by the time the signal comes."""
    code = (
        "import os, signal, sys\n"
        "def hook(event, args):\n"
        f"    if event == 'import' and args[0].startswith('{imported}') and not done:\n"
        "        done.append(args[0])\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "done = []\n"
        "sys.addaudithook(hook)\n"
        "from hasten.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", str(model), "-p", "hi", "--ignore-eos"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (130, "", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_serve_chat_and_stop(environment: dict[str, str], model: Path, number: signal.Signals, code: int) -> None:
    name = "my-model"
    with serving(environment, str(model), "--served-model-name", name, "--executor", "reference") as (process, url):
        assert [entry["id"] for entry in httpx.get(f"{url}/v1/models").json()["data"]] == [name]
        config = httpx.get(f"{url}/config").json()
        assert "reference" in json.dumps(config)
        chat = hasten(environment, "chat", url, "--max-tokens", "3", "--ignore-eos", text="hello\n")
        assert chat.returncode == 0, chat.stderr
        assert "3 answer tokens" in chat.stderr
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, err) == (code, ""), out


def test_idle_server_uses_less_than_a_hundredth_of_a_core(environment: dict[str, str], model: Path) -> None:
    """The whole process, all its threads, after it has worked: nothing polls, and the compute team is parked."""
    with serving(environment, str(model), "--served-model-name", "toy", "--threads", "2") as (process, url):
        body = {"model": "toy", "prompt": "hello", "max_tokens": 20}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        time.sleep(1.0)  # the team may spin for a while after a request
        watched = psutil.Process(process.pid)
        started, before = time.perf_counter(), watched.cpu_times()
        time.sleep(4.0)
        after, elapsed_s = watched.cpu_times(), time.perf_counter() - started
    assert (after.user + after.system - before.user - before.system) / elapsed_s < 0.01
