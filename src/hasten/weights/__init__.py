"""Model files: readers that turn what is on disk into a Checkpoint."""

from __future__ import annotations

import os

from hasten.weights.checkpoint import Checkpoint


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a model by what it is. GGUF files are what there is so far. Raises: BadFile, Unsupported."""
    from hasten.weights.gguf_checkpoint import open_gguf

    return open_gguf(path)


__all__ = ["open_checkpoint"]
