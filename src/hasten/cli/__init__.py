"""The command line. One file per command; nothing heavy is imported before it is known which command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `hasten` script."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from hasten import __version__

        print(__version__)
        return
    from hasten.cli.app import run

    sys.exit(run(sys.argv[1:]))
