"""How far the native executor is from float32: mean KL divergence and top-1 agreement on held-out text.

divergence.py says how it is measured. Exits with 3 when a bar is missed or the held-out text is shorter than asked for.
"""

from __future__ import annotations

import sys
from typing import Any

from divergence import MAX_ADDED_BY_INT8, MAX_DIVERGENCE, MIN_AGREEMENT, measure
from harness import arguments, at_least, at_most, report

from hasten.weights import open_checkpoint
from hasten.weights.registry import resolve

EXIT_MISSED = 3


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=None, help="positions to compare; default 20,000, with --quick 2,000")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    num_tokens = args.tokens or (2_000 if args.quick else 20_000)
    checkpoint = open_checkpoint(resolve(args.model, fetch=True).path)
    try:
        figures = measure(checkpoint, num_tokens, args.threads)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_MISSED
    bf16, int8 = figures["bf16"], figures["int8"]
    added = int8.mean_divergence - bf16.mean_divergence
    measured: dict[str, Any] = {"model": args.model, "positions": bf16.num_positions, "windows": len(bf16.divergences)}
    for name, found in figures.items():
        measured[f"{name}_mean_kld"] = found.mean_divergence
        measured[f"{name}_kld_standard_error"] = found.standard_error
        measured[f"{name}_top1"] = found.agreement
        measured[f"{name}_mean_rest"] = found.sum_rest / found.num_positions
    bars = [
        at_most("mean KLD, bf16 KV, × 1000", [bf16.mean_divergence * 1e3], MAX_DIVERGENCE * 1e3),
        at_least("top-1 agreement, bf16 KV", [bf16.agreement], MIN_AGREEMENT),
        at_most("mean KLD added by int8 KV, × 1000", [added * 1e3], MAX_ADDED_BY_INT8 * 1e3),
    ]
    report(args, "quality", measured, bars)
    return 0 if all(bar.holds for bar in bars) else EXIT_MISSED


if __name__ == "__main__":
    sys.exit(main())
