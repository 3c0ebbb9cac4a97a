"""Commands in this process: exit codes, one line on stderr, JSON, answers and their timing."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hasten.cli import app
from hasten.errors import (
    BadFile,
    DoesNotFit,
    EngineStopped,
    HastenError,
    InvalidRequest,
    TemplateError,
    UnknownModel,
    Unsupported,
    UsageError,
)
from tests.support.toy_gguf import write_toy_gguf

REFERENCE = ("--executor", "reference")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HASTEN_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HASTEN_DEBUG", raising=False)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf"))


@pytest.fixture(scope="module")
def model_without_template(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_toy_gguf(tmp_path_factory.mktemp("toy") / "plain.gguf", chat_template=None))


def raising(error: BaseException) -> Any:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (InvalidRequest("x"), 2),
        (TemplateError("x"), 2),
        (UnknownModel("x"), 2),
        (BadFile("x"), 1),
        (Unsupported("x"), 1),
        (HastenError("x"), 1),
        (EngineStopped("x"), 1),
        (DoesNotFit("x"), 4),
        (MemoryError(), 4),
        (OSError(28, "x"), 1),
        (ZeroDivisionError("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.guarded(raising(error)) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (0 if code == 130 else 1)
    assert all(line.startswith("hasten: ") for line in lines)


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (3, 3), ("text", 0)])
def test_result_of_a_command_is_its_exit_code(result: object, code: int) -> None:
    assert app.guarded(lambda: result) == code


def test_messages_are_one_line_and_a_bug_says_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    app.guarded(raising(BadFile("first\n  second")))
    app.guarded(raising(RuntimeError("ours")))
    assert capsys.readouterr().err.splitlines() == [
        "hasten: first second",
        "hasten: internal error: RuntimeError: ours (HASTEN_DEBUG=1 shows where)",
    ]


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_DEBUG", "1")
    with pytest.raises(UnknownModel):
        app.run(["pull", "nothing"])


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["bogus"], 'Unknown command "bogus"'),
        (["serve"], "MODEL"),
        (["serve", "no-such-model"], "unknown model: 'no-such-model'; known are smollm2"),
        (["models", "extra"], "extra"),
        (["generate", "smollm2", "-p", "x", "--temperature", "nan"], "temperature must be a finite number"),
        (["pull", "smollm2", "--sha256", "12"], "64 hexadecimal digits"),
    ],
)
def test_usage_errors(tokens: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(tokens) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--threads", "-1"], 2, "--threads is -1"),
        (["--max-num-seqs", "0"], 2, "--max-num-seqs is 0"),
        (["--memory", "banana"], 2, "--memory: 'banana' is not a size"),
        (["--memory", "1KB"], 4, "--memory"),
        (["--memory", "900TB"], 4, "are free here"),
        (["--max-model-len", "100000"], 2, "--max-model-len is 100000"),
        (["--system", "s", "--raw"], 2, "--system needs a chat template"),
    ],
)
def test_engine_options_are_refused_by_the_engine(
    model: str, options: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["generate", model, "-p", "x", *REFERENCE, *options]) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def generated(capsys: pytest.CaptureFixture[str], *tokens: str) -> dict[str, Any]:
    assert app.run(["generate", *tokens, "--json", *REFERENCE]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    answer: dict[str, Any] = json.loads(captured.out)
    return answer


def test_generate_prints_answer_and_timing(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["generate", model, "-p", "hello", "--raw", "--max-tokens", "5", "--seed", "7", "--ignore-eos", *REFERENCE]
    assert app.run(tokens) == 0
    captured = capsys.readouterr()
    answer = generated(capsys, model, "-p", "hello", "--raw", "--max-tokens", "5", "--seed", "7", "--ignore-eos")
    assert captured.out == answer["text"] + "\n"
    assert "TTFT " in captured.err
    assert "TPOT " in captured.err
    assert f"{answer['prompt_tokens']} prompt + 5 answer tokens" in captured.err
    assert captured.err.endswith(" s · length\n")
    assert answer["seed"] == 7
    assert answer["model"] == model
    assert answer["finish_reason"] == "length"
    assert sum(part["ms"] for part in answer["ledger"]["parts"]) == pytest.approx(answer["wall_ms"])


def test_generate_uses_the_template_if_there_is_one(
    model: str, model_without_template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {
        (path, flags): generated(capsys, path, "-p", "hello", "--max-tokens", "1", *flags)["prompt_tokens"]
        for path in (model, model_without_template)
        for flags in ((), ("--raw",))
    }
    assert counts[model, ()] > counts[model, ("--raw",)]
    assert counts[model_without_template, ()] == counts[model_without_template, ("--raw",)] == counts[model, ("--raw",)]
    with_system = generated(capsys, model, "-p", "hello", "--max-tokens", "1", "--system", "be brief")
    assert with_system["prompt_tokens"] > counts[model, ()]


def test_generate_chat_without_a_template_is_an_error(model_without_template: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["generate", model_without_template, "-p", "x", "--chat", *REFERENCE]) == 2
    assert "template" in capsys.readouterr().err


def standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_generate_reads_standard_input(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    by_option = generated(capsys, model, "-p", "grüße\n", "--raw", "--max-tokens", "4", "--seed", "1")
    standard_input(monkeypatch, "grüße\n".encode())
    piped = generated(capsys, model, "--raw", "--max-tokens", "4", "--seed", "1")
    assert piped["text"] == by_option["text"]
    standard_input(monkeypatch, b"ab\xff")
    assert app.run(["generate", model]) == 2
    assert "byte 2 is 0xff" in capsys.readouterr().err


def test_generate_without_text_is_refused(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_input(monkeypatch, b"")
    for option in ((), ("-p", "")):
        assert app.run(["generate", model, *option]) == 2
        assert capsys.readouterr().err.startswith("hasten: there is no text")
    monkeypatch.setattr(sys, "stdin", None)
    assert app.run(["generate", model]) == 2


def test_generate_prompt_over_the_context_names_both_numbers(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["generate", model, "-p", "x " * 600, "--raw", *REFERENCE]) == 2
    err = capsys.readouterr().err
    assert "max_model_len is 512" in err
    assert "tokens" in err


def test_chat_remembers_and_forgets(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    standard_input(monkeypatch, b"hello\nhello\n\n/reset\nhello\n/quit\nnever\n")
    assert app.run(["chat", model, "--max-tokens", "3", "--temperature", "0", "--ignore-eos", *REFERENCE]) == 0
    captured = capsys.readouterr()
    counts = [int(line.split(" prompt")[0].split()[-1]) for line in captured.err.splitlines()]
    assert len(counts) == 3
    assert counts[1] > counts[0], "the second message is read with the first"
    assert counts[2] == counts[0], "/reset forgets"


def test_chat_goes_on_after_a_message_that_is_too_long(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_input(monkeypatch, b"x " * 600 + b"\nhello\n")
    assert app.run(["chat", model, "--max-tokens", "3", "--ignore-eos", *REFERENCE]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert "max_model_len is 512" in lines[0]
    assert "3 answer tokens" in lines[1]


def test_chat_goes_on_after_a_line_that_is_not_utf_8(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--max-tokens", "3", "--temperature", "0", "--ignore-eos", *REFERENCE)
    standard_input(monkeypatch, b"hello\nagain\n")
    assert app.run(["chat", model, *options]) == 0
    without = capsys.readouterr()
    standard_input(monkeypatch, b"hello\nbad \xff line\nagain\n")
    assert app.run(["chat", model, *options]) == 1
    captured = capsys.readouterr()
    assert captured.out == without.out, "the conversation is the same without that line"
    assert captured.err.splitlines()[1] == "hasten: this line is not UTF-8: it is left out"
    monkeypatch.setattr(sys, "stdin", None)
    assert app.run(["chat", model, *options]) == 0


def test_models_and_pull(model: str, home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert app.run(["models"]) == 0
    assert "to pull" in capsys.readouterr().out
    assert app.run(["pull", model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"path": str(home / "models/toy.gguf"), "bytes": Path(model).stat().st_size}]
    (home / "models/cut.gguf").write_bytes(Path(model).read_bytes()[:200])
    assert app.run(["models", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert listed["smollm2"]["bytes"] is None
    assert listed["toy.gguf"]["format"] == "q4_1"
    assert listed["toy.gguf"]["architecture"] == "llama"
    assert listed["toy.gguf"]["parameters"] > 0
    assert listed["cut.gguf"]["problem"]
    assert app.run(["models"]) == 0
    out = capsys.readouterr().out
    assert "cut.gguf: " in out
    assert "folder: " in out
