"""`hasten` as a process, for tests of the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

HASTEN = (sys.executable, "-m", "hasten.cli")
LIMIT_S = 60.0  # of a whole process, on a machine that does other things as well


def hasten(environment: Mapping[str, str], *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HASTEN, *arguments], input=text, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(r"hasten: [^\n]+\n", done.stderr), done.stderr
    assert words in done.stderr


@contextmanager
def serving(environment: Mapping[str, str], *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its address."""
    process = subprocess.Popen(
        [*HASTEN, "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"ready\s+(http://\S+)", line):
                yield process, found[1]
                break
        else:
            raise AssertionError(process.communicate()[1])
    finally:
        process.kill()
        process.communicate()
