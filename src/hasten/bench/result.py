"""A result: one plain object, as JSON and CSV."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from hasten.errors import BadFile

FORMAT = "hasten-bench/1"
SWEEP_FORMAT = "hasten-bench-sweep/1"
_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "chunk_gap_ms", "e2e_ms", "ttft_from_send_ms", "send_wait_ms")
_COLUMNS = ("n", "mean", "p50", "p90", "p95", "p99", "max")


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Complete or not there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_text(json.dumps(result, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """A result written by `write_json`. Raises BadFile."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BadFile(f"{path} is not JSON: {error}") from None
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise BadFile(f"{path} is not a bench result: it has no format {FORMAT!r}")
    return result


def write_csv(path: Path, result: dict[str, Any]) -> None:
    """One row per latency metric, or one per step of a sweep."""
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        if result["format"] == SWEEP_FORMAT:
            writer.writerow(
                ("load", "requests_per_s", "output_tokens_per_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "error_rate")
            )
            for point in result["points"]:
                writer.writerow(_point_row(point))
            return
        writer.writerow(("metric", *_COLUMNS, *(f"{name}_{end}" for name in _COLUMNS[2:6] for end in ("low", "high"))))
        for name in _LATENCIES:
            row = result["latency"].get(name, {})
            ends = [end for column in _COLUMNS[2:6] for end in row.get(f"{column}_interval") or ("", "")]
            writer.writerow((name, *(row.get(column, "") for column in _COLUMNS), *ends))
        for name in ("output_tokens_per_s", "input_tokens_per_s", "requests_per_s"):
            writer.writerow((name, result["requests"]["ok"], result["throughput"][name]))


def _point_row(point: dict[str, Any]) -> tuple[Any, ...]:
    latency, throughput = point["latency"], point["throughput"]
    return (
        point["load"]["value"],
        throughput["requests_per_s"],
        throughput["output_tokens_per_s"],
        latency["ttft_ms"].get("p50"),
        latency["ttft_ms"].get("p99"),
        latency["tpot_ms"].get("p50"),
        point["requests"]["error_rate"],
    )
