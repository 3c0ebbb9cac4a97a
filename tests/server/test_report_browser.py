"""The report in a real browser: nothing requested, nothing complained about, readable wide and narrow, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.report import write_report
from tests.support.browser import open_page
from tests.support.sample_report import sample_report

pytestmark = pytest.mark.full

# Text drawn in the plots, in screen pixels: the SVG is scaled with the page.
_SMALLEST_SVG_TEXT = """() => Math.min(...[...document.querySelectorAll('svg text')].map(
    t => 14 * t.ownerSVGElement.getBoundingClientRect().width / t.ownerSVGElement.viewBox.baseVal.width))"""
_OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Relative luminance as in WCAG 2.1, of the body's ink and paper
_CONTRAST = """() => {
  const lum = c => { const v = c.match(/\\d+/g).slice(0, 3).map(x => x / 255)
      .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const s = getComputedStyle(document.body);
  const [a, b] = [lum(s.color), lum(s.backgroundColor)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05); }"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_report_is_readable_and_silent(tmp_path: Path, width: int, dark: bool):
    (path,) = write_report(sample_report(), tmp_path / "report.html")
    with open_page(path.as_uri(), width=width, dark=dark) as (page, log):
        page.wait_for_timeout(300)
        assert page.evaluate(_OVERFLOW) <= 0, "the page scrolls sideways"
        assert page.evaluate(_SMALLEST_SVG_TEXT) >= 9.5
        assert page.evaluate(_CONTRAST) >= 7  # WCAG AAA
        page.locator("summary").first.click()
        assert page.locator("details[open] table").first.is_visible()
    assert [url for url in log.requests if url != path.as_uri() and not url.startswith("data:")] == []
    assert log.console_errors == []


def test_the_browser_log_would_notice(tmp_path: Path):
    page_file = tmp_path / "bad.html"
    page_file.write_text('<img src="missing.png"><script>throw new Error("boom")</script>')
    with open_page(page_file.as_uri(), width=390) as (page, log):
        page.wait_for_timeout(300)
    assert any(url.endswith("missing.png") for url in log.requests)
    assert any("boom" in text for text in log.console_errors)
