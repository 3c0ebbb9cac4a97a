"""The command line. One file per command; nothing heavy is imported before it is known which command runs."""

from __future__ import annotations

import os
import signal
import sys

from hasten import exit_codes


def main() -> None:
    """Entry point of the `hasten` script."""
    # a Ctrl-C that was ignored by whoever started us stays ignored
    mine = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if mine:
            # an exception inside an import can end up anywhere; nothing is written yet that could be lost
            signal.signal(signal.SIGINT, _leave)
        code = _main(sys.argv[1:], interruptible=mine)
        if mine:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the answer is out: the rest is the interpreter's tidying up
    except KeyboardInterrupt:
        code = exit_codes.INTERRUPTED
    if code == exit_codes.INTERRUPTED:
        # CPython would end by the signal if it came inside an exec("…"), as dataclasses use it; all is closed already
        if sys.stdout is not None:
            from hasten.cli import standard_output

            standard_output.flush(code)
        os._exit(code)
    sys.exit(code)


def _leave(number: int, frame: object) -> None:
    os._exit(exit_codes.INTERRUPTED)


def _main(arguments: list[str], *, interruptible: bool) -> int:
    from hasten.cli import standard_output

    if sys.stdout is None:
        standard_output.say(standard_output.CLOSED)
        return exit_codes.FAILED
    standard_output.keep_a_buffer()
    if arguments in (["--version"], ["-V"]):
        from hasten import __version__

        print(__version__)
        return standard_output.flush(exit_codes.DONE)
    # the engine has a team of its own; NumPy's BLAS threads spin beside it from the import on, a sixth of a start on two cores
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from hasten.cli.app import run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run(arguments)
