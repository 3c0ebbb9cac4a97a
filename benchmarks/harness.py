"""What every benchmark shares: arguments, the JSON object with its bars, medians, the machine, and where peers are."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise and whether it holds. `bar` None: measured, nothing promised. `spread` is (max - min) / median."""

    name: str
    value: float | None
    bar: float | None
    holds: bool | None
    n: int
    spread: float | None


def at_least(name: str, samples: Sequence[float], bar: float | None) -> Bar:
    """A bar on the median of samples where more is better."""
    return _bar(name, samples, bar, more_is_better=True)


def at_most(name: str, samples: Sequence[float], bar: float | None) -> Bar:
    """A bar on the median of samples where less is better."""
    return _bar(name, samples, bar, more_is_better=False)


def _bar(name: str, samples: Sequence[float], bar: float | None, *, more_is_better: bool) -> Bar:
    if not samples:
        return Bar(name, None, bar, None, 0, None)
    middle = statistics.median(samples)
    spread = (max(samples) - min(samples)) / middle if middle else None
    holds = None if bar is None else (middle >= bar if more_is_better else middle <= bar)
    return Bar(name, middle, bar, holds, len(samples), spread)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with --quick and --json."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about a minute: fewer and shorter samples")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


def peers_dir() -> Path:
    """Where peer engines are installed: $PEERS_DIR, else ~/.cache/hasten-peers."""
    return Path(os.environ.get("PEERS_DIR", "~/.cache/hasten-peers")).expanduser()


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    model = "unknown CPU"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.system(), "load": list(os.getloadavg())}


def report(
    args: argparse.Namespace, name: str, measured: dict[str, Any], bars: Sequence[Bar], missing: Sequence[str] = ()
) -> None:
    """Print the result: one JSON object with --json, else a table a person reads."""
    if args.json:
        result = {"benchmark": name, "quick": args.quick, "machine": machine(), "measured": measured}
        print(json.dumps({**result, "missing": list(missing), "bars": [asdict(bar) for bar in bars]}))
        return
    print(f"{name} on {machine()['cpu']}, {os.cpu_count()} cores")
    for key, value in measured.items():
        print(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")
    for bar in bars:
        verdict = {True: "holds", False: "MISSED", None: "no bar" if bar.bar is None else "not measured"}[bar.holds]
        value = "–" if bar.value is None else f"{bar.value:.3f}"
        spread = "" if bar.spread is None else f", spread {bar.spread:.0%}"
        wanted = "" if bar.bar is None else f" (bar {bar.bar:g})"
        print(f"  {bar.name}: {value}{wanted} {verdict}, n = {bar.n}{spread}")
    for peer in missing:
        print(f"  not installed, not measured: {peer}")
