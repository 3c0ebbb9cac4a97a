"""A client's words in our answers, kept short: no answer may be longer for a longer bad request."""

from __future__ import annotations

MAX_QUOTED = 100  # characters


def cut(text: str, limit: int = MAX_QUOTED) -> str:
    """`text`, or its first `limit` characters and an ellipsis."""
    return text if len(text) <= limit else text[:limit] + "…"
