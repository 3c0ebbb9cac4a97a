"""docs/cli.md has the tables that the commands and dataclasses give, row by row: what a table has too much fails as well."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from pathlib import Path
from typing import Any

import pytest

from hasten.cli.app import COMMANDS, build
from hasten.cli.options import SAMPLING_HELP, is_shown
from hasten.config import EngineConfig, ServerConfig, range_text
from hasten.request import RANGES, SamplingParams

LINES = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8").splitlines()


def table_after(beginning: str) -> list[str]:
    """Rows of the first table after the one line that begins so."""
    (start,) = (i for i, line in enumerate(LINES) if line.startswith(beginning))
    from_table = itertools.dropwhile(lambda line: not line.startswith("|"), LINES[start + 1 :])
    return list(itertools.takewhile(lambda line: line.startswith("|"), from_table))[2:]


def option_of(name: str) -> str:
    return f"`--{name.replace('_', '-')}`"


def default_of(value: object) -> str:
    if is_shown(value):
        return "auto" if value is None else str(value)
    return "off" if value is False else "none"


def config_rows(config: type[Any]) -> list[str]:
    """| option | variable | default | values | what it does |"""
    hints = typing.get_type_hints(config)
    made = []
    for field in dataclasses.fields(config):
        kind = hints[field.name]
        choices = ", ".join(typing.get_args(kind)) if typing.get_origin(kind) is typing.Literal else ""
        limits = ", ".join((*field.metadata["words"], range_text(field.metadata["low"], field.metadata["high"])))
        cells = (f"`HASTEN_{field.name.upper()}`", default_of(field.default), choices or limits, field.metadata["help"])
        made.append(f"| {option_of(field.name)} | {' | '.join(cells)} |")
    return made


def sampling_rows() -> list[str]:
    """| option | default | values | what it does |"""
    defaults = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    return [
        f"| {option_of(name)} | {default_of(defaults[name])} | {RANGES.get(name, '')} | {text} |"
        for name, text in SAMPLING_HELP.items()
    ]


def own_rows(command: str) -> list[str]:
    """| option | what it does |, for options that are in none of the groups."""
    fields = [field.name for config in (EngineConfig, ServerConfig) for field in dataclasses.fields(config)]
    shared = {option_of(name) for name in (*fields, *SAMPLING_HELP)} if command in ("serve", "chat", "generate") else set()
    if command == "chat":
        shared.discard("`--api-key`")  # to send, not to ask for
    made = []
    for argument in build()[command].assemble_argument_collection():
        options = [f"`{name}`" for name in argument.names if name.startswith("--") or len(name) == 2]
        if options and not shared & set(options):
            made.append(f"| {', '.join(options)} | {argument.parameter.help} |")
    return made


def test_the_tables_of_the_groups() -> None:
    assert table_after("The engine: ") == config_rows(EngineConfig)
    assert table_after("The server: ") == config_rows(ServerConfig)
    assert table_after("Sampling: ") == sampling_rows()


@pytest.mark.parametrize("command", ["chat", "generate", "pull", "models"])
def test_the_table_of_a_command(command: str) -> None:
    assert table_after(f"Options of `hasten {command}`") == own_rows(command)


def test_serve_has_no_options_of_its_own() -> None:
    assert own_rows("serve") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_line_in_the_list_and_tells_the_rest_in_its_help(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasten.cli.bench.bench._help", None)  # it keeps the line that an earlier tree listed it with
    function = build(command)[command].default_command
    assert function is not None
    assert function.__doc__ is not None
    assert function.__doc__.split("\n", 1)[0] == COMMANDS[command]
    build(command)([command, "--help"], exit_on_error=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert " ".join(function.__doc__.split("Args:")[0].split()) in shown
