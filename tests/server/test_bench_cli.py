"""`hasten bench` as a user runs it: files, exit codes, Ctrl-C."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hasten.cli.app import run
from tests.support.fake_server import FakeServer

LOAD = ["--requests", "40", "--concurrency", "2", "--input-tokens", "8", "--approximate-lengths"]


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as lines:
        return list(csv.reader(lines))


@pytest.fixture
def quick_server() -> Any:
    with FakeServer(tokens=4, first_ms=10, gap_ms=4) as server:
        yield server


def test_files_and_the_same_result_from_raw(
    quick_server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {name: tmp_path / f"a.{name}" for name in ("json", "jsonl", "csv", "html")}
    options = ["--output", names["json"], "--raw", names["jsonl"], "--csv", names["csv"], "--report", names["html"]]
    assert run(["bench", quick_server.url, *LOAD, *map(str, options), "--price-per-hour", "0.5", "--ttft-ms", "500"]) == 0
    said = capsys.readouterr().out
    assert "40 of 40 requests answered" in said
    assert "USD per million tokens" in said
    result = json.loads(names["json"].read_text())
    assert result["requests"]["ok"] == 40
    assert "<html" in names["html"].read_text()
    rows = {row[0]: row for row in _rows(names["csv"])}
    assert float(rows["ttft_ms"][3]) == pytest.approx(result["latency"]["ttft_ms"]["p50"])
    assert run(["bench", "metrics", str(names["jsonl"]), "--output", str(tmp_path / "b.json")]) == 0
    assert json.loads((tmp_path / "b.json").read_text()) == result


def test_json_is_one_object(quick_server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", quick_server.url, *LOAD, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["format"] == "hasten-bench/1"
    assert captured.err == ""


def _measure(path: Path, **scenario: Any) -> str:
    with FakeServer(**scenario) as server:
        assert run(["bench", server.url, *LOAD, "--output", str(path), "--json"]) == 0
    return str(path)


def test_compare_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = _measure(tmp_path / "a.json", tokens=2, first_ms=30, gap_ms=4)
    slow = _measure(tmp_path / "slow.json", tokens=2, first_ms=60, gap_ms=4)
    capsys.readouterr()
    assert run(["bench", "compare", a, slow, "--fail-if-worse", "ttft_p50:10%"]) == 3
    assert "worse" in capsys.readouterr().out
    assert run(["bench", "compare", slow, a, "--fail-if-worse", "ttft_p50:10%"]) == 0
    assert run(["bench", "compare", a, a, "--fail-if-worse", "ttft_p99:5%"]) == 1
    assert "40 and 40 requests are too few to see 5 %" in capsys.readouterr().out
    assert run(["bench", "compare", a, slow, "--report", str(tmp_path / "c.md"), "--json"]) == 0
    changes = {change["metric"]: change for change in json.loads(capsys.readouterr().out)["changes"]}
    assert changes["ttft_p50"]["verdict"] == "worse"
    assert "B against A" in (tmp_path / "c.md").read_text()


def test_import_and_replay(tmp_path: Path, quick_server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"timestamp": 50 * i, "input_length": 20, "output_length": 3, "hash_ids": [i]} for i in range(4)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["bench", "import", str(tmp_path / "m.jsonl"), "-o", str(tmp_path / "t.jsonl")]) == 0
    assert run(["bench", quick_server.url, "--trace", str(tmp_path / "t.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"]["output"] == 12


def test_a_sweep_prints_its_steps(quick_server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--sweep",
        "concurrency",
        "--sweep-max",
        "2",
        "--csv",
        str(tmp_path / "s.csv"),
        "--report",
        str(tmp_path / "s.html"),
    ]
    assert run(["bench", quick_server.url, "--requests", "8", "--input-tokens", "8", "--approximate-lengths", *options]) == 0
    captured = capsys.readouterr()
    assert "Steps of the sweep" in captured.out
    assert captured.err.startswith("1: ")
    assert [row[0] for row in _rows(tmp_path / "s.csv")] == ["load", "1", "2"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["http://127.0.0.1:1"], 2, "cannot reach"),
        (["ftp://x"], 2, "not the address"),
        (["http://127.0.0.1:1", "--rate", "0"], 2, "--rate is 0"),
        (["http://127.0.0.1:1", "--input-tokens", "many"], 2, "no length"),
        (["http://127.0.0.1:1", "--model", "m", "--params", "[1]"], 2, "JSON object"),
        (["http://127.0.0.1:1", "--trace", "/nowhere.jsonl", "--model", "m"], 1, "cannot read"),
        (["http://127.0.0.1:1", "--output", "/nowhere/a.json"], 2, "no folder"),
        (["compare", "/nowhere.json", "/nowhere.json"], 1, "cannot read"),
        (["compare", "a", "b", "--fail-if-worse", "speed:5%"], 2, "not known"),
        (["metrics", "/nowhere.jsonl"], 1, "cannot read"),
        (["import", "/nowhere.jsonl", "-o", "/tmp/x"], 1, "cannot read"),
    ],
)
def test_bad_words_get_one_line(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *words, *(["--approximate-lengths"] if words[0].startswith("http") else [])]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_answered_is_a_failure(busy: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Said also where the client was busy: answers that all fail at once keep it so."""
    if busy:
        monkeypatch.setattr("hasten.bench.audit.MAX_CPU_SHARE", 0.0)
    with FakeServer(error_every=1, error_status=429) as server:
        assert run(["bench", server.url, *LOAD]) == 1
    captured = capsys.readouterr()
    assert "http_429" in captured.out
    assert "no measured request was answered" in captured.err
    assert not busy or "the client is saturated" in captured.err


def test_ctrl_c_gives_the_report_so_far(tmp_path: Path) -> None:
    with FakeServer(tokens=4, first_ms=20, gap_ms=5) as server:
        command = [sys.executable, "-m", "hasten.cli", "bench", server.url, "--concurrency", "2", "--duration-s", "120"]
        options = ["--input-tokens", "8", "--approximate-lengths", "--prompts", "50", "--output", str(tmp_path / "a.json")]
        with subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        ) as bench:
            deadline = time.monotonic() + 30
            while len(server.log()) < 20 and time.monotonic() < deadline:
                time.sleep(0.1)
            bench.send_signal(signal.SIGINT)
            out, err = bench.communicate(timeout=30)
    assert bench.returncode == 130, err
    assert out.startswith("hasten bench\nInterrupted: ")
    assert "Traceback" not in err
    result = json.loads((tmp_path / "a.json").read_text())
    assert result["requests"]["ok"] >= 10
    assert result["requests"]["interrupted"] <= 2
    assert result["requests"]["errors"] == 0


def _all_of(terminal: int) -> bytes:
    drawn = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other side is closed and everything is read
            return drawn
        if not piece:
            return drawn
        drawn += piece


def test_a_terminal_gets_a_live_table_and_a_pipe_does_not(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with FakeServer(tokens=4, first_ms=20, gap_ms=5) as server:
        command = [
            sys.executable,
            "-m",
            "hasten.cli",
            "bench",
            server.url,
            "--rate",
            "20",
            "--duration-s",
            "2.5",
            "--warmup",
            "0",
        ]
        options = ["--input-tokens", "8", "--approximate-lengths"]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        bench = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment)
        os.close(theirs)
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(_all_of, ours)  # while it draws: a terminal holds 4 KB, and then the writer waits
            out, _ = bench.communicate(timeout=60)
            drawn = reading.result(timeout=60)
    os.close(ours)
    assert bench.returncode == 0
    assert b"in flight" in drawn
    assert "in flight" not in out
    assert out.startswith("hasten bench\n")
    assert "\x1b" not in out


def test_a_sweep_has_no_raw_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "http://127.0.0.1:1", "--sweep", "rate", "--raw", "x.jsonl"]) == 2
    assert "--raw" in capsys.readouterr().err
