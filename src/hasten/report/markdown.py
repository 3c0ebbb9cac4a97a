"""A report as Markdown: tables for every plot's numbers, so that nothing is lost where pictures are not shown."""

from __future__ import annotations

from hasten.report.model import Block, Figures, Note, Report, Table, Text, format_cell


def report_markdown(report: Report) -> str:
    """The whole report as text."""
    lines = [f"# {_escape(report.title)}", ""]
    if report.summary:
        lines += [_escape(report.summary), ""]
    for section in report.sections:
        lines += [f"## {_escape(section.title)}", ""]
        for block in section.blocks:
            lines += [*_block(block), ""]
    if report.facts:
        lines += ["## The run", "", "| | |", "|---|---|"]
        lines += [f"| {_escape(k)} | {_escape(v)} |" for k, v in report.facts]
        lines.append("")
    return "\n".join(lines)


def _block(block: Block) -> list[str]:
    if isinstance(block, Text):
        return [_escape(block.text)]
    if isinstance(block, Note):
        return [f"> **{block.level.capitalize()}:** {_escape(block.text)}"]
    if isinstance(block, Figures):
        return [
            f"- {_escape(f.label)}: **{format_cell(f.value)}{' ' + f.unit if f.unit else ''}**"
            + (f" ({_escape(f.detail)})" if f.detail else "")
            for f in block.figures
        ]
    if isinstance(block, Table):
        return [f"### {_escape(block.title)}", "", *_table(block)]
    return [f"### {_escape(block.title)}", "", _escape(block.description), "", *_table(block.table())]


def _table(table: Table) -> list[str]:
    lines = ["| " + " | ".join(_escape(c.heading) for c in table.columns) + " |"]
    lines.append("|" + "|".join("---" if i == 0 else "--:" for i in range(len(table.columns))) + "|")
    for row in table.rows:
        cells = (format_cell(v, c.digits) for c, v in zip(table.columns, row, strict=True))
        lines.append("| " + " | ".join(_escape(cell) for cell in cells) + " |")
    return lines


def _escape(text: str) -> str:
    for char in "\\|*_`<":
        text = text.replace(char, "\\" + char)
    return text.replace("\n", " ")
