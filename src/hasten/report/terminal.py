"""A report on a terminal, through rich: colour only where the terminal has it, plain text on a pipe."""

from __future__ import annotations

from typing import IO, Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

from hasten.report.model import Block, Figures, Note, Plot, Report, Table, Text, format_cell

_STYLES = {"info": "blue", "warning": "yellow", "error": "bold red"}


def print_report(report: Report, file: IO[str] | None = None) -> None:
    """Write the report to `file` (stdout when None). Plots are shown as their numbers, at most twelve rows."""
    console = Console(file=file, highlight=False)
    console.print(RichText(report.title, style="bold"))
    if report.summary:
        console.print(RichText(report.summary))
    for section in report.sections:
        console.print()
        console.print(RichText(section.title, style="bold underline"))
        for block in section.blocks:
            _print_block(console, block)
    if report.facts:
        console.print()
        for name, value in report.facts:
            console.print(RichText(f"{name}: {value}", style="dim"))


def _print_block(console: Console, block: Block) -> None:
    if isinstance(block, Text):
        console.print(RichText(block.text))
    elif isinstance(block, Note):
        console.print(RichText(f"{block.level}: {block.text}", style=_STYLES[block.level]))
    elif isinstance(block, Figures):
        for figure in block.figures:
            unit = f" {figure.unit}" if figure.unit else ""
            detail = f"  {figure.detail}" if figure.detail else ""
            console.print(RichText(f"{figure.label}: {format_cell(figure.value)}{unit}{detail}"))
    elif isinstance(block, Table):
        _print_table(console, block)
    else:
        _print_table(console, _short(block))


def _short(plot: Plot) -> Table:
    table = plot.table()
    if len(table.rows) <= 12:
        return table
    step = (len(table.rows) - 1) / 11
    return Table(table.title, table.columns, tuple(table.rows[round(i * step)] for i in range(12)))


def _print_table(console: Console, table: Table) -> None:
    rich_table = RichTable(title=RichText(table.title), title_justify="left", title_style="")
    for i, column in enumerate(table.columns):
        words = any(isinstance(row[i], str) for row in table.rows)
        justify: Literal["left", "right"] = "left" if words else "right"
        rich_table.add_column(RichText(column.heading), justify=justify)
    for row in table.rows:
        rich_table.add_row(*(RichText(format_cell(v, c.digits)) for c, v in zip(table.columns, row, strict=True)))
    console.print(rich_table)
