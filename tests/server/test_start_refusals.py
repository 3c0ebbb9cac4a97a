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
