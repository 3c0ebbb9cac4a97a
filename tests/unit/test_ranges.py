"""The ranges of sampling parameters are the same wherever they are said: requests over HTTP and docs/api.md."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest

from hasten.request import RANGES
from hasten.server import protocol

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def as_written(text: str) -> str:
    """Figures as a message has them, for figures as a page has them."""
    text = text.replace("−", "-").replace("2⁶⁴ - 1", str(2**64 - 1))
    return " ".join(text.replace("2⁶³", str(2**63)).split())


@pytest.mark.parametrize("name", sorted(set(RANGES) - {"logprobs", "prompt_logprobs", "stop_token_ids"}))
def test_the_row_of_a_field_has_its_range(name: str) -> None:
    rows = [line.split(" | ") for line in API.splitlines() if line.startswith("| ") and f"`{name}`" in line.split(" | ")[0]]
    assert len(rows) == 1
    assert str(RANGES[name]) in as_written(rows[0][-1])


def test_the_range_of_logprobs_for_both_endpoints() -> None:
    text = as_written(API)
    assert f"`top_logprobs` in {RANGES['logprobs']}" in text
    assert f"`echo`; `logprobs` in {RANGES['logprobs']}" in text
    assert RANGES["prompt_logprobs"] == RANGES["logprobs"], "one number asks for both"


def test_http_has_a_range_for_every_number_of_a_request() -> None:
    numbers = {
        field if kind in (int | None, float | None) else f"{field}[...]"
        for request in (protocol.ChatRequest, protocol.CompletionRequest)
        for field, kind in typing.get_type_hints(request).items()
        if kind in (int | None, float | None, list[int] | None, dict[str, float] | None)
    }
    assert numbers - {"best_of"} <= set(protocol.RANGES)
