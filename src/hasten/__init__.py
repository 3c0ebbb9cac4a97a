"""hasten: a latency-first LLM inference server. Public names: LLM, AsyncLLM, SamplingParams."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import costs every start 10 ms in which Ctrl-C is a traceback

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from hasten.llm import LLM, AsyncLLM
    from hasten.request import SamplingParams

# Imported on first use: `import hasten` must not pay for the engine.
_LAZY = {"LLM": "hasten.llm", "AsyncLLM": "hasten.llm", "SamplingParams": "hasten.request"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'hasten' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
