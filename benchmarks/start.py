"""Process start to first token: `hasten generate` from exec to the first byte of the answer, warm page cache.

Each sample is a new process. The floor is the interpreter itself: `python -c pass` is timed beside it, interleaved.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from harness import arguments, at_most, report


def first_byte_s(command: list[str]) -> float:
    """Seconds from exec to the first byte on standard output; the process is left to end by itself."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    if not first or process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode} and no answer")
    return seconds


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    from hasten.weights.registry import resolve

    path = str(resolve(args.model, fetch=True).path)
    generate = [
        sys.executable,
        "-m",
        "hasten.cli",
        "generate",
        path,
        "-p",
        "Hello, how are you?",
        "--max-tokens",
        "8",
        "--temperature",
        "0",
    ]
    interpreter = [sys.executable, "-c", "print(1)"]
    first_byte_s(generate)  # warm page cache and byte code
    samples, floors = [], []
    for _ in range(3 if args.quick else 11):
        samples.append(first_byte_s(generate))
        floors.append(first_byte_s(interpreter))
    measured = {"first_token_s": statistics.median(samples), "python_alone_s": statistics.median(floors)}
    report(args, "start", measured, [at_most("process start to first token, s", samples, 1.0)])


if __name__ == "__main__":
    main()
