"""Eight users with prompts of mixed lengths: hasten beside llama-server and vLLM, one trace, started in turn.

Each round starts every server, warms it up with the first requests, replays the trace in a closed loop with `hasten bench` and
stops it again; ratios are taken round by round. All get the same texts, temperature 0, ignore_eos and the same number of
threads. hasten and llama-server read the same GGUF file; vLLM reads the bf16 folder made from it ($PEERS_DIR/smollm2-hf).
Flags are printed with the result. A peer that is not installed is said and not measured.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from harness import Bar, arguments, at_least, peers_dir, report

CONTEXT = 2048  # tokens of each user
WARMUP = 4


class StartError(RuntimeError):
    """A server that ended or was silent for too long."""


@dataclass(frozen=True, slots=True)
class Server:
    """How a server is started; `{port}` in the command is replaced."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 60.0


def servers(args: argparse.Namespace, model: str) -> tuple[list[Server], list[str]]:
    """Those that can be started, and those that are not installed."""
    threads = str(args.threads)
    python = (sys.executable, "-m", "hasten.cli")
    found = [
        Server("hasten", (*python, "serve", model, "--port", "{port}", "--threads", threads, "--max-model-len", str(CONTEXT)))
    ]
    missing = []
    llama = peers_dir() / "llama.cpp-build/bin/llama-server"
    if llama.exists():
        users, tokens = str(args.users), str(CONTEXT * args.users)
        flags: tuple[str, ...] = ("-t", threads, "-np", users, "-c", tokens, "-fa", "on", "--no-webui")
        found.append(Server("llama-server", (str(llama), "-m", model, "--port", "{port}", *flags)))
    else:
        missing.append(f"llama-server ({llama})")
    vllm, folder = peers_dir() / "vllm/bin/python", peers_dir() / "smollm2-hf"
    if vllm.exists() and folder.exists():
        flags = ("--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--max-num-seqs", str(args.users))
        env = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": threads}
        # by module: the `vllm` script of the package vllm-cpu looks for a package named vllm, and ends
        module = ("-m", "vllm.entrypoints.openai.api_server", "--model", str(folder))
        found.append(Server("vllm", (str(vllm), *module, "--port", "{port}", *flags), env, start_s=400.0))
    else:
        missing.append(f"vllm ({vllm} with {folder})")
    return found, missing


def write_requests(path: Path, num_requests: int, input_words: int, output_tokens: int) -> str:
    """The trace: log-normal prompt lengths, counted in words. Returns what it is."""
    from hasten.bench.lengths import parse_lengths
    from hasten.bench.text import TextMaker
    from hasten.bench.tokens import WordCounter
    from hasten.bench.trace import write_trace
    from hasten.bench.workload import WorkloadOptions, describe_workload, make_jobs

    lengths = parse_lengths(f"lognormal:{input_words}:0.7:900")
    options = WorkloadOptions(
        "plain", lengths, parse_lengths(f"uniform:{output_tokens // 2}:{output_tokens * 3 // 2}"), seed=11
    )
    jobs = islice(make_jobs(options, TextMaker(WordCounter(), seed=11)), num_requests)
    write_trace(path, (job.turns[0] for job in jobs))
    return f"{describe_workload(options)}, {num_requests} requests, prompt lengths in words"


@contextmanager
def running(server: Server) -> Iterator[str]:
    """Start it, wait until it is healthy, give its address, stop it. Raises StartError with the end of its log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [part.replace("{port}", str(port)) for part in server.command]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **server.env}, start_new_session=True
        )
        try:
            if not _healthy(process, f"http://127.0.0.1:{port}/health", server.start_s):
                log.seek(0)
                tail = log.read()[-1500:].decode("utf-8", "replace")
                raise StartError(f"{server.name} did not start within {server.start_s:g} s:\n{tail}")
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(process)


def _healthy(process: subprocess.Popen[bytes], url: str, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure(server: Server, trace: Path, users: int) -> dict[str, Any]:
    """One run against a fresh server: the bench result."""
    from hasten.bench.options import BenchOptions
    from hasten.bench.session import run_bench

    options = BenchOptions(trace=str(trace), concurrency=users, ignore_eos=True, warmup=WARMUP)
    with running(server) as url:
        outcome = run_bench(url, options)
    requests = outcome.result["requests"]
    if requests["errors"] or outcome.exit_code:
        raise RuntimeError(f"{server.name}: {requests['by_error'] or outcome.result['audit']['findings']}")
    return outcome.result


def figures(result: dict[str, Any]) -> dict[str, float]:
    return {
        "output_tokens_per_s": result["throughput"]["output_tokens_per_s"],
        "ttft_p50_ms": result["latency"]["ttft_ms"]["p50"],
        "ttft_p99_ms": result["latency"]["ttft_ms"]["p99"],
        "tpot_p50_ms": result["latency"]["tpot_ms"]["p50"],
        "token_gap_p99_ms": result["latency"]["itl_ms"]["p99"],
        "output_tokens": result["tokens"]["output"],
    }


def bars(runs: Mapping[str, list[dict[str, float]]], wanted: float) -> list[Bar]:
    """Ratios round by round: hasten over each peer in throughput, peer over hasten in latency."""
    out = []
    for peer in [name for name in runs if name != "hasten"]:
        pairs = list(zip(runs["hasten"], runs[peer], strict=False))
        faster = [ours["output_tokens_per_s"] / theirs["output_tokens_per_s"] for ours, theirs in pairs]
        first = [theirs["ttft_p99_ms"] / ours["ttft_p99_ms"] for ours, theirs in pairs]
        bar = wanted if peer == "llama-server" else None
        out.append(at_least(f"tokens/s over {peer}", faster, bar))
        out.append(at_least(f"p99 TTFT of {peer} over ours", first, None if bar is None else 1.0))
    return out


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="smollm2", help="alias or GGUF file (default: smollm2)")
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--bar", type=float, default=3.0, help="tokens/s over llama-server (3 on smollm2)")
    parser.add_argument("--rounds", type=int, default=None, help="default: 5, with --quick 1")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server that runs is stopped, too
    from hasten.weights.registry import resolve

    model = str(resolve(args.model, fetch=True).path)
    found, missing = servers(args, model)
    runs: dict[str, list[dict[str, float]]] = {server.name: [] for server in found}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        what = write_requests(trace, *((8 + WARMUP, 60, 8) if args.quick else (64 + WARMUP, 200, 64)))
        for _ in range(args.rounds or (1 if args.quick else 5)):
            for server in tuple(found):
                try:
                    run = figures(measure(server, trace, args.users))
                except StartError as error:  # a peer that cannot run here does not take the others' figures with it
                    if server.name == "hasten":
                        raise
                    print(f"hasten: {error}", file=sys.stderr, flush=True)
                    missing.append(f"{server.name} (installed, but did not start)")
                    found.remove(server)
                    del runs[server.name]
                    continue
                runs[server.name].append(run)
                print(f"{server.name}: {run['output_tokens_per_s']:.1f} tokens/s", file=sys.stderr, flush=True)
    measured: dict[str, Any] = {"trace": what, "users": args.users, "threads": args.threads}
    for server in found:
        measured[f"{server.name} flags"] = " ".join(server.command)
        for name in runs[server.name][0]:
            measured[f"{server.name} {name}"] = statistics.median(run[name] for run in runs[server.name])
    report(args, "servers", measured, bars(runs, args.bar), missing)


if __name__ == "__main__":
    main()
