"""A headless Chromium that records what a page asks for and what it complains about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str:
    """Path of a Chromium. Raises FileNotFoundError naming the package that brings one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise FileNotFoundError("no Chromium on PATH: sudo apt-get install -y chromium")


@dataclass
class PageLog:
    """What happened while a page was open."""

    requests: list[str] = field(default_factory=list)
    console_errors: list[str] = field(default_factory=list)


@contextmanager
def open_page(url: str, *, width: int, height: int = 900, dark: bool = False) -> Iterator[tuple[Any, PageLog]]:
    """A Playwright page at `url` and its log; closed at the end."""
    from playwright.sync_api import sync_playwright

    log = PageLog()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        try:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
            page.on("request", lambda request: log.requests.append(request.url))
            page.on("console", lambda message: log.console_errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: log.console_errors.append(str(error)))
            page.goto(url)
            yield page, log
        finally:
            browser.close()
