"""The command line as a process: exit codes, signals, pipes, start-up cost, a whole server."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.toy_gguf import toy_spec, write_toy_gguf

HASTEN = (sys.executable, "-m", "hasten.cli")
LIMIT_S = 60.0  # of a whole process, on a machine that does other things as well


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy with room for a long answer, so that there is something to interrupt."""
    return write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", spec=toy_spec(max_position=8192))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HASTEN_") and name != "NO_COLOR"}
    return environ | {"HASTEN_HOME": str(tmp_path / "home")}


def hasten(environment: Mapping[str, str], *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HASTEN, *arguments], input=text, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(r"hasten: [^\n]+\n", done.stderr), done.stderr
    assert words in done.stderr


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


def test_no_colour_in_a_pipe(environment: dict[str, str], model: Path) -> None:
    done = hasten(environment, "generate", str(model), "-p", "hi", "--max-tokens", "2", "--ignore-eos")
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x1b" not in hasten(environment, "--help").stdout


@pytest.mark.parametrize("no_color", ["", "1"])
def test_terminal_gets_colour_unless_told_otherwise(environment: dict[str, str], model: Path, no_color: str) -> None:
    environment |= {"NO_COLOR": no_color, "TERM": "xterm"}
    master, slave = pty.openpty()
    arguments = ["generate", str(model), "-p", "hi", "--max-tokens", "2", "--ignore-eos"]
    process = subprocess.Popen([*HASTEN, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    try:
        shown = read_to_end(master)
        assert process.wait(LIMIT_S) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert "TTFT" in shown
    assert ("\x1b[2m" in shown) == (not no_color)


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
    start_s = cpu_seconds()
    done = hasten(environment, "generate", str(path), "-p", "x")
    assert cpu_seconds() - start_s < 2.0, "seconds of CPU time: the clock would count what else the machine does"
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
    command = [sys.executable, "-X", "importtime", *HASTEN[1:], "generate", str(model), "-p", "hi", "--ignore-eos"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        assert any(line.split("|")[-1].strip().startswith(imported) for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out.strip()) == (130, "")
    assert all(line.startswith("import time:") for line in err.splitlines()), err


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


@contextmanager
def serving(environment: Mapping[str, str], *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its address."""
    process = subprocess.Popen(
        [*HASTEN, "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"ready\s+(http://\S+)", line):
                yield process, found[1]
                break
        else:
            raise AssertionError(process.communicate()[1])
    finally:
        process.kill()
        process.communicate()


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
