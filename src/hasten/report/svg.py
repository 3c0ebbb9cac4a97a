"""A plot as SVG: title and description for screen readers, colour-blind safe, light and dark, no script.

Colours: Okabe and Ito's palette (2008), in an order whose neighbours differ in lightness; series also differ by dash and
marker, so that colour is never the only sign.
"""

from __future__ import annotations

import math
from html import escape

from hasten.report.model import Plot, Series
from hasten.report.scale import Axis, make_axis, tick_label

# A small canvas: at 390 pixels of screen the 14-pixel text is still 10 pixels high.
WIDTH, HEIGHT = 480, 320
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 48
LEGEND_ROW = 20
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B2182B")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "12 4", "6 2 2 2")

STYLE = """
.plot text{font:14px system-ui,sans-serif;fill:var(--ink,#1b1b1b)}
.plot .axis{stroke:var(--ink,#1b1b1b);stroke-width:1}
.plot .grid{stroke:var(--grid,#d9d9d9);stroke-width:1}
@media (prefers-color-scheme:dark){.plot{--ink:#ececec;--grid:#444}}
"""


def plot_svg(plot: Plot, *, number: int = 0, standalone: bool = False) -> str:
    """SVG text of `plot`. `number` makes ids unique on a page; `standalone` adds what a file of its own needs."""
    legend_rows = math.ceil(len(plot.series) / 2) if len(plot.series) > 1 else 0
    height = HEIGHT + legend_rows * LEGEND_ROW + (6 if legend_rows else 0)
    x_axis, y_axis = _axes(plot)
    parts = [
        f'<svg class="plot" role="img" viewBox="0 0 {WIDTH} {height}" aria-labelledby="t{number} d{number}"'
        + (' xmlns="http://www.w3.org/2000/svg">' if standalone else ">"),
        f'<title id="t{number}">{escape(plot.title)}</title><desc id="d{number}">{escape(plot.description)}</desc>',
    ]
    if standalone:
        parts.append(f"<style>{STYLE}</style>")
    parts += _frame(plot, x_axis, y_axis)
    for i, series in enumerate(plot.series):
        parts += _series(plot, series, i, x_axis, y_axis)
    if legend_rows:
        parts += _legend(plot)
    parts.append("</svg>")
    return "\n".join(parts)


def _axes(plot: Plot) -> tuple[Axis, Axis]:
    ys = [v for s in plot.series for v in (*s.y, *s.low, *s.high)]
    y_axis = make_axis(ys, start=HEIGHT - BOTTOM, end=TOP, log=plot.y_log, from_zero=not plot.y_log)
    if plot.categories:
        last = len(plot.categories) - 0.5
        ticks = tuple(float(i) for i in range(len(plot.categories)))
        return Axis(-0.5, last, LEFT, WIDTH - RIGHT, False, ticks), y_axis
    xs = [v for s in plot.series for v in s.x]
    return make_axis(xs, start=LEFT, end=WIDTH - RIGHT, log=plot.x_log, from_zero=False), y_axis


def _frame(plot: Plot, x_axis: Axis, y_axis: Axis) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.pixel(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 5:.1f}" text-anchor="end">{tick_label(tick)}</text>')
    labels = plot.categories or tuple(tick_label(t) for t in x_axis.ticks)
    for tick, label in zip(x_axis.ticks, labels, strict=True):
        parts.append(f'<text x="{x_axis.pixel(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{escape(label)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{bottom}"/>')
    parts.append(f'<text x="{(LEFT + right) / 2:.0f}" y="{bottom + 40}" text-anchor="middle">{escape(plot.x_label)}</text>')
    middle = (TOP + bottom) / 2
    parts.append(f'<text transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(plot.y_label)}</text>')
    return parts


def _points(plot: Plot, series: Series, x_axis: Axis, y_axis: Axis) -> list[tuple[float, float]]:
    points = []
    for x, y in zip(series.x, series.y, strict=True):
        shown = math.isfinite(x) and math.isfinite(y) and (y > 0 or not plot.y_log) and (x > 0 or not plot.x_log)
        if shown:
            points.append((x_axis.pixel(x), y_axis.pixel(y)))
    return points


def _series(plot: Plot, series: Series, index: int, x_axis: Axis, y_axis: Axis) -> list[str]:
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
    if plot.kind == "bar":
        return _bars(plot, series, index, x_axis, y_axis)
    points = _points(plot, series, x_axis, y_axis)
    parts = []
    for x, low, high in zip(series.x, series.low, series.high, strict=False):
        if math.isfinite(low) and math.isfinite(high) and (low > 0 or not plot.y_log):
            at = x_axis.pixel(x)
            parts.append(
                f'<line stroke="{colour}" stroke-width="1.5" opacity="0.6" '
                f'x1="{at:.1f}" x2="{at:.1f}" y1="{y_axis.pixel(low):.1f}" y2="{y_axis.pixel(high):.1f}"/>'
            )
    if plot.kind in ("line", "step") and len(points) > 1:
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        for x, y in points[1:]:
            path += f"H{x:.1f}V{y:.1f}" if plot.kind == "step" else f"L{x:.1f} {y:.1f}"
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
    if plot.kind == "scatter" or len(points) <= 30:
        parts += [_marker(index, x, y, colour) for x, y in points]
    return parts


def _bars(plot: Plot, series: Series, index: int, x_axis: Axis, y_axis: Axis) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    slot = abs(x_axis.pixel(1.0) - x_axis.pixel(0.0)) * 0.8 if plot.categories else 12.0
    width = slot / max(1, len(plot.series))
    base = y_axis.pixel(max(0.0, y_axis.low)) if not plot.y_log else y_axis.start
    parts = []
    for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        if not math.isfinite(y):
            continue
        left = x_axis.pixel(x) - slot / 2 + index * width
        top = y_axis.pixel(y)
        parts.append(
            f'<rect x="{left:.1f}" y="{min(top, base):.1f}" width="{width * 0.92:.1f}" '
            f'height="{abs(base - top):.1f}" fill="{colour}"/>'
        )
        if series.low:
            at = left + width * 0.46
            parts.append(
                f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" '
                f'y1="{y_axis.pixel(series.low[i]):.1f}" y2="{y_axis.pixel(series.high[i]):.1f}"/>'
            )
    return parts


def _marker(index: int, x: float, y: float, colour: str) -> str:
    shape = index % 4
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    if shape == 1:
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="{colour}"/>'
    corners = (
        ((x, y - 4.5), (x + 4, y + 3), (x - 4, y + 3))
        if shape == 2
        else ((x, y - 4.5), (x + 4.5, y), (x, y + 4.5), (x - 4.5, y))
    )
    return f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}" fill="{colour}"/>'


def _legend(plot: Plot) -> list[str]:
    parts = []
    for i, series in enumerate(plot.series):
        x = LEFT + (i % 2) * (WIDTH - LEFT) // 2
        y = HEIGHT + (i // 2) * LEGEND_ROW + 9
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
        if plot.kind == "bar":
            parts.append(f'<rect x="{x}" y="{y - 6}" width="22" height="10" fill="{colour}"/>')
        else:
            parts.append(
                f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            )
            parts.append(_marker(i, x + 11, y, colour))
        name = series.name if len(series.name) <= 24 else series.name[:23] + "…"
        parts.append(f'<text x="{x + 28}" y="{y + 5}">{escape(name)}</text>')
    return parts
