"""Report writers: every form holds the same numbers, nothing hostile gets through, files are whole or absent."""

from __future__ import annotations

import io
import itertools
import json
import math
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hasten.report import Column, Plot, Series, Table, write_report
from hasten.report.html import report_html
from hasten.report.markdown import report_markdown
from hasten.report.model import format_cell
from hasten.report.scale import linear_ticks, log_ticks, make_axis
from hasten.report.svg import plot_svg
from hasten.report.terminal import print_report
from tests.support.sample_report import HOSTILE, sample_report


class _Page(HTMLParser):
    """Tags, attributes and text of a page, by the standard library's own parser."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _parse(html: str) -> _Page:
    page = _Page()
    page.feed(html)
    return page


def test_html_has_no_script_and_no_request():
    page = _parse(report_html(sample_report()))
    assert not {"script", "iframe", "img", "object"} & set(page.tags)
    links = [value for _, name, value in page.attributes if name in ("src", "href", "action")]
    assert links == ["data:,"]
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert HOSTILE in "".join(page.text)  # shown as text


def test_html_has_every_number_of_every_plot():
    text = "".join(_parse(report_html(sample_report())).text)
    for number in ("50.12", "1,200", "52.0", "300", "–"):
        assert number in text


def test_every_plot_has_title_description_and_unique_ids():
    page = _parse(report_html(sample_report()))
    assert page.tags.count("svg") == page.tags.count("desc") == 4
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids)) == 8
    labelled = [value.split() for _, name, value in page.attributes if name == "aria-labelledby"]
    assert sorted(i for pair in labelled for i in pair) == sorted(ids)


def test_markdown_tables_are_not_broken_by_cell_text():
    lines = report_markdown(sample_report()).splitlines()
    start = lines.index("### Percentiles") + 2
    for line in lines[start : start + 4]:
        unescaped = line.replace("\\|", "")
        assert unescaped.count("|") == 4, line
    assert not any(line.startswith("<script") for line in lines)


def test_json_round_trips_and_has_no_nan(tmp_path: Path):
    (path,) = write_report(sample_report(), tmp_path / "r.json")
    data = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert data["data"] == {"ttft_ms": {"p50": 50.1234}, "nan": None}
    kinds = [block["kind"] for section in data["sections"] for block in section["blocks"]]
    assert kinds == ["figures", "note", "text", "table", "plot", "plot", "plot", "plot"]
    assert data["sections"][1]["blocks"][1]["series"][1]["y"] == [70.0, 75.0, None, 300.0]


def test_svg_files_stand_alone_and_parse_as_xml(tmp_path: Path):
    paths = write_report(sample_report(), tmp_path / "chart.svg")
    assert [p.name for p in paths] == [
        "chart-1-ttft-by-load.svg",
        "chart-2-gaps.svg",
        "chart-3-errors.svg",
        "chart-4-nothing.svg",
    ]
    for path in paths:
        root = ET.fromstring(path.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find("{http://www.w3.org/2000/svg}title") is not None


def test_points_land_where_the_axis_says():
    plot = Plot("t", "d", "x", "y", (Series("s", (0.0, 10.0), (0.0, 100.0)),))
    root = ET.fromstring(plot_svg(plot, standalone=True))
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    (x0, y0), (x1, y1) = ((float(c.get("cx", "")), float(c.get("cy", ""))) for c in circles)
    assert (x0, y0) == (58.0, 272.0)  # LEFT, HEIGHT - BOTTOM
    assert (x1, y1) == (466.0, 14.0)  # WIDTH - RIGHT, TOP


def test_terminal_output_is_plain_on_a_pipe():
    out = io.StringIO()
    print_report(sample_report(), out)
    text = out.getvalue()
    assert "\x1b" not in text
    for wanted in ("TTFT p50: 50.1 ms", "warning: The client was busy.", "1,200", HOSTILE[:20]):
        assert wanted in text


@pytest.mark.parametrize("name", ["r.txt", "r", "r.html.gz"])
def test_unknown_suffix_names_the_known(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match=r"\.html, \.md, \.json, \.svg"):
        write_report(sample_report(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "r.html"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_report(sample_report(), target)
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
    assert target.read_text() == "old"


def test_ragged_tables_and_series_are_refused():
    with pytest.raises(ValueError, match="row 0 has 1 cells, there are 2 columns"):
        Table("t", (Column("a"), Column("b")), (("x",),))
    with pytest.raises(ValueError, match="2 x values, 1 y values"):
        Series("s", (1.0, 2.0), (1.0,))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0.0, "0"),
        (0.000123, "0.000123"),
        (1234.5, "1,234"),
        (5, "5"),
        (math.inf, "∞"),
        ("a", "a"),
    ],
)
def test_format_cell(value: float | str | None, text: str):
    assert format_cell(value) == text


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 97), (3, 3), (-5, 12), (0.001, 0.0011), (1e6, 5e9), (0, 0)])
def test_linear_ticks_cover_the_range(low: float, high: float):
    ticks = linear_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 9
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    assert max(steps) == pytest.approx(min(steps))


@pytest.mark.parametrize(("low", "high"), [(1, 10), (0.3, 40), (7, 7), (1e-6, 1e6), (1, 1), (950, 1050)])
def test_log_ticks_cover_the_range(low: float, high: float):
    ticks = log_ticks(low, high)
    assert ticks[0] <= low * (1 + 1e-9)
    assert ticks[-1] >= high * (1 - 1e-9)
    assert 2 <= len(ticks) <= 10
    axis = make_axis([low, high], start=0, end=100, log=True, from_zero=False)
    assert 0 <= axis.pixel(low) <= axis.pixel(high) <= 100


def test_plot_table_thins_evenly_and_keeps_the_ends():
    series = Series("s", tuple(float(i) for i in range(1000)), tuple(float(i) for i in range(1000)))
    rows = Plot("t", "d", "x", "y", (series,)).table().rows
    assert len(rows) == 40
    assert rows[0] == (0.0, 0.0)
    assert rows[-1] == (999.0, 999.0)
