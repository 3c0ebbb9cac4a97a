"""Fixtures every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The demo model's file; fetched once if it is not there yet."""
    from hasten.weights.registry import resolve

    return resolve("smollm2", fetch=True).path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests may take longer than the limit that pyproject.toml sets for quick ones."""
    for item in items:
        if item.get_closest_marker("full") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))
