"""The one report writer: HTML, Markdown, JSON, terminal and SVG files from the same object. Imports nothing of hasten."""

from __future__ import annotations

from hasten.report.model import Block, Column, Figure, Figures, Note, Plot, Report, Section, Series, Table, Text
from hasten.report.write import write_report

__all__ = [
    "Block",
    "Column",
    "Figure",
    "Figures",
    "Note",
    "Plot",
    "Report",
    "Section",
    "Series",
    "Table",
    "Text",
    "write_report",
]
