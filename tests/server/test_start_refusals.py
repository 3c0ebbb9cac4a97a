"""Settings that `serve` refuses before it loads anything, so that no client is blamed for them later."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.config import EngineConfig, ServerConfig
from hasten.errors import UsageError
from hasten.server.run import serve
from hasten.weights.registry import ResolvedModel


def refusal(tmp_path: Path, config: ServerConfig) -> str:
    """What `serve` says; the model's file does not exist, so anything later would fail in another way."""
    with pytest.raises(UsageError) as caught:
        serve(ResolvedModel(tmp_path / "none.gguf", "none", (), "", ""), EngineConfig(), config)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{% for m in messages %}\n{{ m.content }}\n{% endfi %}", "line 3"),
        (b"\n{{ messages[0 }}", "line 2"),
        (b"{{ messages | no_such_filter }}", "no_such_filter"),
        (b"{{" + b"(" * 5000 + b"1" + b")" * 5000 + b"}}", "nested"),
        (b"x" * 200_000, "200000 characters"),
        (b"abc\xff", "not UTF-8 at byte 3"),
        (None, "No such file"),
    ],
)
def test_a_chat_template_that_cannot_work(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "chat.jinja"
    if content is not None:
        path.write_bytes(content)
    said = refusal(tmp_path, ServerConfig(port=0, chat_template=str(path)))
    assert said.startswith("--chat-template: ")
    assert str(path) in said
    assert words in said


@pytest.mark.parametrize("value", ["", " "])
@pytest.mark.parametrize("name", ["served_model_name", "api_key", "cors"])
def test_empty_names_and_keys(tmp_path: Path, name: str, value: str) -> None:
    for values in ((value,), ("fine", value)):
        said = refusal(tmp_path, ServerConfig(port=0, **{name: values}))  # type: ignore[arg-type]  # a field with a tuple
        assert f"--{name.replace('_', '-')}" in said
        assert "empty" in said


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("api_key", "secret ", "begins or ends with a blank"),
        ("api_key", "sec\udcffret", "not printable ASCII"),
        ("api_key", "sécret", "not printable ASCII"),
        ("api_key", "sec\nret", "not printable ASCII"),
        ("served_model_name", "model\udcff", "not UTF-8"),
        ("served_model_name", " model", "begins or ends with a blank"),
        ("cors", "http://bücher.test", "not printable ASCII"),
    ],
)
def test_names_and_keys_that_no_client_can_send(tmp_path: Path, name: str, value: str, words: str) -> None:
    said = refusal(tmp_path, ServerConfig(port=0, **{name: ("fine", value)}))  # type: ignore[arg-type]  # a field with a tuple
    assert f"--{name.replace('_', '-')}" in said
    assert words in said
    assert "ret" not in said  # it may be a key


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host(tmp_path: Path, host: str) -> None:
    assert refusal(tmp_path, ServerConfig(host=host)).startswith("--host is empty")


@pytest.mark.parametrize("host", ["a" * 64 + ".test", "no such host", "256.1.1.1"])
def test_a_host_that_cannot_be_is_one_line_and_exit_1(tmp_path: Path, host: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = ResolvedModel(tmp_path / "none.gguf", "none", (), "", "")
    assert serve(model, EngineConfig(), ServerConfig(host=host, port=0)) == 1
    output = capfd.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert host[:40] in output.err


def test_what_middleware_cannot_take_is_found_at_the_start() -> None:
    """Starlette would build it with the first request, and answer every one with a bare 500."""
    from hasten.server.app import create_app
    from tests.server.running import scripted, scripted_state
    from tests.support.toy_tokenizer import toy

    words = toy()
    with pytest.raises(UnicodeEncodeError):
        create_app(scripted_state(scripted(words), words, api_keys=("k\udcff",)))
