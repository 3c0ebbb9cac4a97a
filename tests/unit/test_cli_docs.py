"""docs/cli.md has a row for every option, made of the same dataclasses as the option itself."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest

from hasten.cli.options import SAMPLING_HELP, is_shown
from hasten.config import EngineConfig, ServerConfig, range_text
from hasten.request import SamplingParams

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def rows(config: type[Any]) -> list[str]:
    """| option | default | values | what it does |"""
    hints = typing.get_type_hints(config)
    made = []
    for field in dataclasses.fields(config):
        default = "auto" if field.default is None else str(field.default) if is_shown(field.default) else ""
        choices = (
            ", ".join(typing.get_args(hints[field.name])) if typing.get_origin(hints[field.name]) is typing.Literal else ""
        )
        limits = ", ".join((*field.metadata["words"], range_text(field.metadata["low"], field.metadata["high"])))
        made.append(f"| `--{field.name.replace('_', '-')}` | {default} | {choices or limits} | {field.metadata['help']} |")
    return made


def sampling_rows() -> list[str]:
    fields = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    return [
        f"| `--{name.replace('_', '-')}` | "
        f"{'auto' if fields[name] is None else fields[name] if is_shown(fields[name]) else ''} | {text} |"
        for name, text in SAMPLING_HELP.items()
    ]


@pytest.mark.parametrize("row", [*rows(EngineConfig), *rows(ServerConfig), *sampling_rows()])
def test_every_option_has_its_row(row: str) -> None:
    assert row in TEXT.splitlines(), f"docs/cli.md lacks:\n{row}"
