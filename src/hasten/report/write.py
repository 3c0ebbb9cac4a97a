"""Write a report to a file; the suffix says as what."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from hasten.report.html import report_html
from hasten.report.markdown import report_markdown
from hasten.report.model import Plot, Report
from hasten.report.svg import plot_svg

SUFFIXES = (".html", ".md", ".json", ".svg")


def write_report(report: Report, path: str | os.PathLike[str]) -> list[Path]:
    """Write `report` as .html, .md, .json, or as one .svg for each plot (NAME-1.svg, …). Returns the files written.

    A file is complete or not there: it is written beside its place and renamed.
    Raises: ValueError for another suffix; OSError when it cannot be written.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix == ".html":
        return [_write(target, report_html(report))]
    if suffix == ".md":
        return [_write(target, report_markdown(report))]
    if suffix == ".json":
        return [_write(target, report_json(report))]
    if suffix == ".svg":
        return _write_svgs(report, target)
    raise ValueError(f"a report cannot be written to {target.name!r}: the name must end in one of {', '.join(SUFFIXES)}")


def report_json(report: Report) -> str:
    """The whole object, with `kind` beside each block; numbers that JSON does not have become null."""
    return json.dumps(_plain(report), ensure_ascii=False, indent=1) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__.lower(), **{("plot" if k == "kind" else k): v for k, v in fields.items()}}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _write_svgs(report: Report, target: Path) -> list[Path]:
    plots = [block for section in report.sections for block in section.blocks if isinstance(block, Plot)]
    if not plots:
        raise ValueError("the report has no plot to write as SVG")
    written = []
    for number, plot in enumerate(plots, start=1):
        slug = re.sub(r"[^a-z0-9]+", "-", plot.title.lower()).strip("-")[:40] or str(number)
        name = target if len(plots) == 1 else target.with_name(f"{target.stem}-{number}-{slug}.svg")
        written.append(_write(name, plot_svg(plot, standalone=True) + "\n"))
    return written


def _write(target: Path, text: str) -> Path:
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target
