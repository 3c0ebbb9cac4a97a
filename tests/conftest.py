"""Fixtures every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The demo model's file; fetched once if it is not there yet."""
    from hasten.weights.registry import resolve

    return resolve("smollm2", fetch=True).path
