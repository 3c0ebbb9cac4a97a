"""Matrix products of one thread at the demo model's shapes: weights read and multiplied per second, beside the read bandwidth.

Rows 1 to 64 of one weight pass; T(8) / T(1) is what seven more rows cost. The head (28 MB) does not fit the caches, the other
shapes do. Bandwidth is one thread summing 256 MB with NumPy, measured before and after.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Bar, arguments, at_most, report

from hasten.ops import kernels
from hasten.ops.matmul import PackedWeights, matmul, pack, quantize_rows

SHAPES = [("q4_1", 576, 576), ("q4_1", 1536, 576), ("q4_1", 576, 1536), ("q8_0", 49152, 576), ("bf16", 1536, 576)]
ROWS = (1, 4, 8, 64)
# Bytes of 32 weights in the file, the float16 numbers among them first.
GROUPS = {"q8_0": (34, 1), "q4_0": (18, 1), "q4_1": (20, 2), "bf16": (64, 0)}
T8_BAR = {"avx512": 1.9}  # two planes with VNNI; other tables are measured, nothing is promised


def random_weights(weight_format: str, n: int, k: int) -> PackedWeights:
    """Random codes under small scales."""
    rng = np.random.default_rng(1)
    size, halves = GROUPS[weight_format]
    groups = rng.integers(0, 256, (n, k // 32, size), dtype=np.uint8)
    if halves:
        groups[..., : 2 * halves] = rng.uniform(0.001, 0.01, (n, k // 32, halves)).astype(np.float16).view(np.uint8)
    else:
        groups[..., 1::2] = 0x3C  # bf16 of about 0.01
    return pack(weight_format, groups.reshape(n, -1), k)


def timed(call: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each call, for about that long and at least 5 times, after one warm-up."""
    call()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


def read_bandwidth(seconds: float) -> float:
    """GB/s of one thread reading memory."""
    data = np.ones(32 << 20, np.int64)
    return float(data.nbytes / min(timed(lambda: np.add.reduce(data), seconds)) / 1e9)


def measure(isa: str, seconds: float) -> tuple[dict[str, Any], list[Bar]]:
    """Every shape at every number of rows. Returns what was measured and the bars."""
    measured: dict[str, Any] = {"isa": isa, "read_gb_s_before": read_bandwidth(seconds)}
    bars: list[Bar] = []
    for weight_format, n, k in SHAPES:
        weights = random_weights(weight_format, n, k)
        name = f"{weight_format} {n}x{k}"
        calls: dict[int, Callable[[], Any]] = {}
        for rows in ROWS:
            x = np.random.default_rng(2).standard_normal((rows, k)).astype(np.float32)
            source = quantize_rows(x, isa=isa) if weights.is_quantized else x
            out = np.zeros((rows, n), np.float32)
            calls[rows] = lambda source=source, out=out, weights=weights: matmul(weights, source, out=out, isa=isa)
        samples = {rows: timed(call, seconds) for rows, call in calls.items()}
        for rows in ROWS:
            best, middle = min(samples[rows]), statistics.median(samples[rows])
            measured[f"{name} rows {rows}"] = {
                "median_ms": middle * 1e3,
                "best_ms": best * 1e3,
                "weights_gb_s": weights.nbytes / best / 1e9,
                "gmac_s": rows * n * k / best / 1e9,
            }
        if n > 10_000:
            pairs = list(zip(timed(calls[8], seconds), timed(calls[1], seconds), strict=False))
            ratios = [eight / one for eight, one in pairs]
            bars.append(at_most(f"T(8 rows) / T(1 row), {name}, {isa}", ratios, T8_BAR.get(isa)))
    measured["read_gb_s_after"] = read_bandwidth(seconds)
    return measured, bars


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--isa", default="auto", help="kernel table (default: the one a server here would use)")
    args = parser.parse_args()
    measured, bars = measure(kernels.selected_isa(args.isa), 0.2 if args.quick else 1.5)
    report(args, "kernels", measured, bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
