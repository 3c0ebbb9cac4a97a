"""What `serve` looks at before it loads anything, so that no client is blamed for it later."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hasten.config import ServerConfig, check_ranges, parse_size
from hasten.errors import TemplateError, UsageError
from hasten.tokenizer.chat_template import check_template


def check_config(config: ServerConfig) -> None:
    """Raises UsageError for what no client could use, or a request would only find out."""
    try:
        parse_size(config.max_body)
    except ValueError as error:
        raise UsageError(f"--max-body: {error}") from None
    check_ranges(config)
    if not config.host.strip():
        raise UsageError("--host is empty: 127.0.0.1 is this machine alone, 0.0.0.0 every address that it has")
    for name in ("served_model_name", "api_key", "cors"):
        for value in getattr(config, name):
            wrong = _wrong_word(value, ascii_only=name != "served_model_name")
            if wrong:
                # the value stays unsaid: it may be a key
                where = f"--{name.replace('_', '-')} (or an entry of HASTEN_{name.upper()})"
                raise UsageError(f"{where} {wrong}: give it a value that clients can send, or leave it out")


def _wrong_word(value: str, *, ascii_only: bool) -> str | None:
    """What keeps a client from sending `value` in a header or in JSON."""
    if not value.strip():
        return "is empty"
    if value != value.strip():
        return "begins or ends with a blank"
    if ascii_only and not (value.isascii() and value.isprintable()):
        return "has characters that are not printable ASCII"
    return None if printable(value) == value else "is not UTF-8"


def printable(text: str) -> str:
    """`text` with a question mark for every byte that was not UTF-8 (Python keeps them as surrogates)."""
    return text.encode(errors="replace").decode()


def printable_names(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, as clients can send it."""
    return tuple(dict.fromkeys(printable(name) for name in names))


def read_template(path: str | None) -> str | None:
    """The chat template in a file. Raises UsageError where it cannot be read or cannot work."""
    if path is None:
        return None
    try:
        template = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--chat-template: cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--chat-template: {path} is not UTF-8 at byte {error.start}") from None
    try:
        check_template(template)
    except TemplateError as error:
        raise UsageError(f"--chat-template: {path}: {error}") from None
    return template
