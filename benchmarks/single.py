"""One stream: prefill 512 tokens and decode 128 on the demo model, beside llama.cpp with the same file and threads.

Samples are interleaved (hasten, llama.cpp, hasten, …), each in a process of its own; ratios are taken pair by pair. llama.cpp
is run by its llama-bench, with and without flash attention, best of both. Both decode behind 512 tokens of context.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import Bar, arguments, at_least, peers_dir, report

PREFILL, DECODE = 512, 128


def hasten_sample(model: str, threads: int, kv: str) -> dict[str, float]:
    """Tokens per second of one fresh process; run by this script with --child."""
    command = [sys.executable, __file__, "--child", "--model", model, "--threads", str(threads), "--kv", kv]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sample: dict[str, float] = json.loads(output)
    return sample


def child(args: argparse.Namespace) -> None:
    """In the child: one warm-up request, then the measured one. Prints JSON."""
    from hasten import LLM, SamplingParams

    rng = random.Random(7)
    prompt = [rng.randrange(100, 40_000) for _ in range(PREFILL)]
    params = SamplingParams(max_tokens=DECODE, temperature=0.0, ignore_eos=True)
    with LLM(args.model, threads=args.threads, kv=args.kv) as llm:
        llm.generate(prompt, SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
        ledger = llm.generate(prompt, params).ledger
    assert ledger is not None
    assert ledger.tpot_ms is not None
    prefill_ms = sum(part.ms for part in ledger.parts if part.name == "prefill")
    print(json.dumps({"prefill": PREFILL / prefill_ms * 1e3, "decode": 1e3 / ledger.tpot_ms}))


def llama_sample(bench: Path, model: str, threads: int) -> dict[str, float]:
    """Tokens per second of one llama-bench run, the better of flash attention off and on."""
    best = {"prefill": 0.0, "decode": 0.0}
    for flash in ("0", "1"):
        common = [str(bench), "-m", model, "-t", str(threads), "-fa", flash, "-r", "1", "-o", "json"]
        for kind, flags in (
            ("prefill", ["-p", str(PREFILL), "-n", "0"]),
            ("decode", ["-p", "0", "-n", str(DECODE), "-d", str(PREFILL)]),
        ):
            output = subprocess.run([*common, *flags], check=True, capture_output=True, text=True).stdout
            best[kind] = max(best[kind], json.loads(output)[0]["avg_ts"])
    return best


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="smollm2", help="alias or GGUF file (default: smollm2)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kv", default="bf16", choices=["bf16", "int8", "f32"])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    from hasten.ops.kernels import available_isas
    from hasten.weights.registry import resolve

    path = str(resolve(args.model, fetch=True).path)
    bench = peers_dir() / "llama.cpp-build/bin/llama-bench"
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(1 if args.quick else 5):
        ours.append(hasten_sample(path, args.threads, args.kv))
        if bench.exists():
            theirs.append(llama_sample(bench, path, args.threads))
        time.sleep(0.5)
    measured: dict[str, object] = {"threads": args.threads, "kv": args.kv}
    bars: list[Bar] = []
    # on AVX2 the bars are lower than where wider integer instructions are; the formats are the file's own
    wide = "avx512" in available_isas()
    for kind, bar in (("prefill", 3.5 if wide else 1.1), ("decode", 1.3 if wide else 1.15)):
        measured[f"hasten_{kind}_tokens_per_s"] = statistics.median(s[kind] for s in ours)
        if theirs:
            measured[f"llama_cpp_{kind}_tokens_per_s"] = statistics.median(s[kind] for s in theirs)
        ratios = [a[kind] / b[kind] for a, b in zip(ours, theirs, strict=False)]
        bars.append(at_least(f"{kind} over llama.cpp", ratios, bar))
    report(args, "single", measured, bars, [] if theirs else [f"llama.cpp ({bench})"])


if __name__ == "__main__":
    main()
