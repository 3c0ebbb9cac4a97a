"""A report as one HTML file: no script, no request, light and dark, readable on a phone and on paper."""

from __future__ import annotations

from html import escape

from hasten.report.model import Block, Column, Figures, Note, Plot, Report, Table, Text, format_cell
from hasten.report.svg import STYLE as PLOT_STYLE
from hasten.report.svg import plot_svg

STYLE = (
    """
:root{color-scheme:light dark;--ink:#1b1b1b;--soft:#595959;--paper:#fff;--line:#d9d9d9;--grid:#d9d9d9;--card:#f5f5f5}
@media (prefers-color-scheme:dark){:root{--ink:#ececec;--soft:#b5b5b5;--paper:#161616;--line:#444;--grid:#444;--card:#232323}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:860px;margin:0 auto;padding:20px 16px 60px}
h1{font-size:1.6rem;line-height:1.2;margin:.5em 0}h2{font-size:1.25rem;margin:2em 0 .5em}h3{font-size:1rem;margin:1.5em 0 .4em}
p{margin:.6em 0;max-width:70ch}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px;margin:.5em 0 1em}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:5px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child,.text{text-align:left}
thead th{color:var(--soft);font-weight:600}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:1em 0}
.figure{background:var(--card);border-radius:8px;padding:10px 12px}
.figure b{display:block;font-size:1.45rem;line-height:1.25}
.figure span{color:var(--soft);font-size:.88rem;overflow-wrap:anywhere}
.note{border-left:5px solid #0072B2;background:var(--card);padding:8px 12px;margin:.8em 0;border-radius:0 6px 6px 0}
.note.warning{border-color:#E69F00}.note.error{border-color:#D55E00}
svg.plot{display:block;width:100%;max-width:640px;height:auto;margin:.5em 0}
details{margin:.2em 0 1em}summary{cursor:pointer;color:var(--soft)}
.facts td:first-child{color:var(--soft);white-space:nowrap;vertical-align:top}
.facts td+td{text-align:left;white-space:normal;overflow-wrap:anywhere}
@media print{body{font-size:11pt}main{max-width:none}details{display:block}h2,h3{break-after:avoid}
svg,table,.figure{break-inside:avoid}}
"""
    + PLOT_STYLE
)

_WORDS = {"info": "Note", "warning": "Warning", "error": "Error"}


def report_html(report: Report) -> str:
    """The whole page as text."""
    body = [f"<h1>{escape(report.title)}</h1>"]
    if report.summary:
        body.append(f"<p>{escape(report.summary)}</p>")
    number = 0
    for section in report.sections:
        body.append(f"<section><h2>{escape(section.title)}</h2>")
        for block in section.blocks:
            number += 1
            body.append(_block(block, number))
        body.append("</section>")
    if report.facts:
        rows = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in report.facts)
        body.append(
            f'<section><h2>The run</h2><div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div></section>'
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # an icon of no bytes: without it a browser asks the server for one
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _block(block: Block, number: int) -> str:
    if isinstance(block, Text):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Note):
        return f'<div class="note {block.level}" role="note"><b>{_WORDS[block.level]}:</b> {escape(block.text)}</div>'
    if isinstance(block, Figures):
        return _figures(block)
    if isinstance(block, Table):
        return f"<h3>{escape(block.title)}</h3>" + _table(block)
    return _plot(block, number)


def _figures(block: Figures) -> str:
    cards = []
    for figure in block.figures:
        unit = f" {escape(figure.unit)}" if figure.unit else ""
        detail = f"<span>{escape(figure.detail)}</span>" if figure.detail else ""
        cards.append(
            f'<div class="figure"><span>{escape(figure.label)}</span>'
            f"<b>{escape(format_cell(figure.value))}{unit}</b>{detail}</div>"
        )
    return f'<div class="figures">{"".join(cards)}</div>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_text_class(table, i)}>{escape(c.heading)}</th>' for i, c in enumerate(table.columns))
    rows = []
    for row in table.rows:
        cells = "".join(
            _cell(table, i, column, value) for i, (column, value) in enumerate(zip(table.columns, row, strict=True))
        )
        rows.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll" tabindex="0"><table aria-label="{escape(table.title)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(table: Table, index: int, column: Column, value: str | float | int | None) -> str:
    return f"<td{_text_class(table, index)}>{escape(format_cell(value, column.digits))}</td>"


def _text_class(table: Table, index: int) -> str:
    """Columns of words are set to the left, numbers to the right."""
    return ' class="text"' if any(isinstance(row[index], str) for row in table.rows) else ""


def _plot(plot: Plot, number: int) -> str:
    return (
        f"<h3>{escape(plot.title)}</h3>{plot_svg(plot, number=number)}<p>{escape(plot.description)}</p>"
        f"<details><summary>The numbers</summary>{_table(plot.table())}</details>"
    )
