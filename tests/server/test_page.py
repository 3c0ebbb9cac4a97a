"""The page at / in a real browser: it streams an answer, asks this server only, complains of nothing, fits a phone."""

from __future__ import annotations

import re

import pytest

from tests.server.running import running_server, scripted
from tests.support.browser import open_page
from tests.support.toy_tokenizer import toy

pytestmark = pytest.mark.full

TEXT = "Hello, <b>world</b>! 世界"
_OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize(("width", "api_keys"), [(1280, ()), (390, ()), (390, ("a-key",))])
def test_page_streams_an_answer(width: int, api_keys: tuple[str, ...]) -> None:
    words = toy()
    with running_server(scripted(words, [list(TEXT.encode())], step_s=0.005), words, api_keys=api_keys) as server:
        with open_page(server.url + "/", width=width) as (page, log):
            if api_keys:
                page.fill("#key", api_keys[0])
            page.fill("#prompt", "Hi")
            page.click("text=Ask")
            page.locator("#timing", has_text="TTFT").wait_for(timeout=10_000)
            assert page.inner_text("#answer") == TEXT
            assert page.evaluate(_OVERFLOW) <= 0, "the page scrolls sideways"
        assert all(url.startswith(server.url) for url in log.requests)
        assert [error for error in log.console_errors if "favicon" not in error] == []


def test_page_shows_errors_and_stops() -> None:
    words = toy()
    with (
        running_server(scripted(words, step_s=0.02), words, api_keys=("a-key",)) as server,
        open_page(server.url + "/", width=390) as (page, _),
    ):
        page.fill("#prompt", "Hi")
        page.click("text=Ask")
        page.locator("#timing", has_text="API key").wait_for(timeout=10_000)
        page.fill("#key", "a-key")
        page.click("text=Ask")
        page.locator("#answer", has_text=re.compile(".{3}")).wait_for(timeout=10_000)
        page.click("#stop")
        page.locator("#timing", has_text="stopped").wait_for(timeout=10_000)
        server.wait_idle(1.0)
