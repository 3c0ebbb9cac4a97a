"""What a report is: sections of text, key figures, tables and plots. Plain data; every writer reads the same object."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Cell = str | float | int | None
PlotKind = Literal["line", "step", "scatter", "bar"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something the reader must not miss. `level` decides its colour and the word in front of it."""

    level: Literal["info", "warning", "error"]
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that matters, with its unit and what it is."""

    label: str
    value: Cell
    unit: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """Key figures shown side by side."""

    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, the unit of its numbers, and how many digits after the point (None: three significant)."""

    name: str
    unit: str = ""
    digits: int | None = None

    @property
    def heading(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns. Raises ValueError when a row has another number of cells."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: row {i} has {len(row)} cells, there are {len(self.columns)} columns")


@dataclass(frozen=True, slots=True)
class Series:
    """Named points of a plot; x and y have the same length. For bars, x are category positions named by Plot.categories."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()  # interval around y, or empty
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"series {self.name!r}: {len(self.x)} x values, {len(self.y)} y values")
        if len(self.low) != len(self.high) or len(self.low) not in (0, len(self.y)):
            raise ValueError(f"series {self.name!r}: interval of {len(self.low)} and {len(self.high)} for {len(self.y)} points")


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot with the words a reader who cannot see it needs, and its numbers as a table.

    `description` says in one or two sentences what the plot shows. Points that are not finite are left out.
    """

    title: str
    description: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: PlotKind = "line"
    x_log: bool = False
    y_log: bool = False
    categories: tuple[str, ...] = ()
    max_table_rows: int = 40

    def table(self) -> Table:
        """The plot's numbers: one row for each x, one column for each series; thinned evenly to max_table_rows."""
        xs = sorted({x for s in self.series for x in s.x if math.isfinite(x)})
        if len(xs) > self.max_table_rows:
            step = (len(xs) - 1) / (self.max_table_rows - 1)
            xs = [xs[round(i * step)] for i in range(self.max_table_rows)]
        lookup = [dict(zip(s.x, s.y, strict=True)) for s in self.series]
        rows = []
        for x in xs:
            name: Cell = self.categories[int(x)] if self.categories else x
            rows.append((name, *(values.get(x) for values in lookup)))
        columns = (Column(self.x_label), *(Column(s.name) for s in self.series))
        return Table(f"{self.title}: numbers", columns, tuple(rows))


Block = Text | Note | Figures | Table | Plot


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report. `facts` are (name, value) pairs about the run: machine, versions, flags, time."""

    title: str
    summary: str
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = ()
    data: dict[str, object] = field(default_factory=dict)  # machine-readable results, for JSON only


def format_cell(value: Cell, digits: int | None = None) -> str:
    """A cell as text: "–" for nothing, numbers with `digits` after the point or three significant digits."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if digits is not None:
        return f"{value:,.{digits}f}"
    if value == 0:
        return "0"
    decimals = min(8, max(0, 2 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{decimals}f}"
