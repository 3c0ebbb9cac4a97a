"""Configuration: frozen dataclasses, written once. The command line, the docs and `/config` are made from these fields.

Each field's `metadata` has its help text, the range of its number, and words that stand for one. "auto" (None here) is
resolved by returning a new config.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hasten.errors import UsageError


def option(
    default: Any,
    help: str,  # noqa: A002 (the word the readers of --help know)
    *,
    low: float | None = None,
    high: float | None = None,
    words: Mapping[str, int] | None = None,
) -> Any:
    """A dataclass field with a help text.

    Args:
        low, high: the numbers it takes, both included; None: no limit on that side.
        words: what may be written in place of a number.
    """
    return field(default=default, metadata={"help": help, "low": low, "high": high, "words": dict(words or {})})


def range_text(low: float | None, high: float | None) -> str:
    """ "1 to 64", "at least 0", or "" where nothing is limited."""
    if low is None:
        return ""
    return f"at least {low:g}" if high is None else f"{low:g} to {high:.12g}"


def check_ranges(config: Any) -> None:
    """Raises UsageError naming the option of the first number that is out of its range."""
    for entry in dataclasses.fields(config):
        value, low, high = getattr(config, entry.name), entry.metadata["low"], entry.metadata["high"]
        if low is None or value is None:
            continue
        if not low <= value <= (sys.float_info.max if high is None else high):  # NaN is in no range, infinity in none of ours
            raise UsageError(f"--{entry.name.replace('_', '-')} is {value}, it must be {range_text(low, high)}")


Isa = Literal["auto", "scalar", "avx2", "avx512"]
KvFormat = Literal["auto", "bf16", "int8", "f32"]
Batching = Literal["continuous", "static"]
ExecutorName = Literal["native", "reference"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that decides what the engine computes and how much memory it takes."""

    executor: ExecutorName = option("native", "native (C++) or reference (NumPy float32, slow, obvious)")
    isa: Isa = option("auto", "instruction set of the kernels; auto takes the best this CPU has")
    threads: int | None = option(
        None, "compute threads; auto follows CPU affinity and cgroup quota (rounded down)", low=1, high=1024
    )
    memory: str | None = option(
        None, "one budget for weights, KV and scratch, e.g. 2GB or 1.5GiB; auto: 80 % of what the cgroup leaves free"
    )
    max_model_len: int | None = option(None, "longest prompt + answer in tokens; auto: what the model and memory allow", low=1)
    max_num_seqs: int = option(64, "most requests in one step", low=1, high=4096)
    chunk: int | None = option(
        None,
        "most prompt tokens of one request in one step; auto: 512 alone, 64 beside decodes; off (or 0): no limit",
        low=0,
        high=65536,
        words={"off": 0},
    )
    max_num_batched_tokens: int = option(512, "most tokens of all requests in one step", low=1, high=65536)
    kv: KvFormat = option(
        "auto",
        "format of the KV cache; auto is bf16; int8 halves it at a small measured loss; f32 is exact, twice the memory of bf16",
    )
    batching: Batching = option("continuous", "continuous: join and leave at every step; static: whole batches, to compare")

    def resolved(self, **changes: Any) -> EngineConfig:
        """A copy with `changes` applied; unknown names raise TypeError."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything about HTTP; nothing here changes a token."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on; 0 picks a free one and prints it", low=0, high=65535)
    served_model_name: tuple[str, ...] = option(
        (), "name clients use for the model; repeatable; default: MODEL as typed, its file and the file without .gguf"
    )
    api_key: tuple[str, ...] = option(
        (), "key clients must send as a Bearer token; repeatable; in the variable other users of the machine do not see it"
    )
    cors: tuple[str, ...] = option((), "origin allowed to call from a browser; repeatable; off by default")
    max_body: str = option("8MB", "largest request body")
    grace_s: float = option(30.0, "seconds running answers get to finish after SIGTERM", low=0)
    chat_template: str | None = option(None, "file with a chat template; auto: the model's own")
    metrics_names: Literal["hasten", "vllm"] = option("hasten", "prefix of /metrics; vllm keeps existing dashboards working")
    access_log: bool = option(False, "one line per request on stderr")


def parse_size(text: str) -> int:
    """Bytes in "512MB", "1.5GiB", "800000". Raises ValueError saying what is accepted."""
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMGT", start=1):
        units[f"{letter}B"] = 1000**power
        units[f"{letter}IB"] = units[letter] = 1024**power
    stripped = text.strip().upper()
    digits = stripped.rstrip("KMGTIB ")
    unit = stripped[len(digits) :].strip()
    try:
        value = float(digits)
        factor = units[unit]
    except (ValueError, KeyError):
        raise ValueError(f"{text!r} is not a size: write 2GB, 1.5GiB or a number of bytes") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} is not a size: it must be positive")
    return int(value * factor)
