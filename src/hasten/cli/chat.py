"""`hasten chat`: a conversation in the terminal, with the timing under each answer."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from hasten import exit_codes
from hasten.cli import options
from hasten.cli.answer import Answer, Talker, timing_line
from hasten.cli.terminal import ProgressLine, dim, note
from hasten.errors import HastenError, InvalidRequest
from hasten.weights import registry

HELP = "/reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer"


def chat(
    model: str,
    /,
    *,
    system: Annotated[str | None, Parameter(help="system message", show_default=False)] = None,
    remote_model: Annotated[
        str | None, Parameter(name="--model", help="with a URL: name of the model; default: its first", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None,
        Parameter(help="with a URL: key to send; default: the first in HASTEN_API_KEY, or OPENAI_API_KEY", show_default=False),
    ] = None,
    sampling: options.SamplingOptions = options.SAMPLING_DEFAULTS,
    engine: options.EngineOptions = options.ENGINE_DEFAULTS,
) -> int:
    """Talk to a model, or to any OpenAI-compatible server, in the terminal.

    One line is one message; TTFT and TPOT stand under each answer. Ctrl-C stops an answer, Ctrl-D ends it.

    Args:
        model: a GGUF file, an alias (smollm2), the name of a file in the models folder, or the URL of a server.
    """
    config = options.engine_config(engine)
    asked = options.asked_sampling(sampling)
    talker: Talker
    if model.startswith(("http://", "https://")):
        from hasten.cli.remote import RemoteServer

        talker = RemoteServer(model, model=remote_model, api_key=options.key_to_send(api_key))
    else:
        with ProgressLine(f"pulling {model}") as progress:
            found = registry.resolve(model, fetch=True, progress=progress)
        from hasten.cli.local import LocalModel

        talker = LocalModel(found, config)
    try:
        return _converse(talker, system, asked)
    finally:
        talker.close()


def _converse(talker: Talker, system: str | None, asked: dict[str, Any]) -> int:
    interactive = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (line editing and history in input())
        note(dim(f"{talker.name} · {HELP}"))
    start = [{"role": "system", "content": system}] if system is not None else []
    messages = list(start)
    failed = False
    while True:
        try:
            line = _next_line(interactive)
        except UnicodeError:
            failed = True
            note("hasten: this line is not UTF-8: it is left out")
            continue
        if line is None:
            break
        text = line.strip()
        if not text:
            continue
        if text == "/quit":
            break
        if text == "/reset":
            messages = list(start)
            continue
        messages.append({"role": "user", "content": text})
        try:
            answer, stopped = _say(talker, messages, asked)
        except HastenError as error:
            # a wrong option is wrong for every message; a prompt that is too long is not
            if isinstance(error, InvalidRequest) and error.param in asked and error.code != "context_length_exceeded":
                raise
            failed = True
            messages.pop()
            note(f"hasten: {error}")
            continue
        messages.append({"role": "assistant", "content": answer})
        if stopped and not interactive:
            return exit_codes.INTERRUPTED
    if interactive:
        note("")
    return exit_codes.FAILED if failed and not interactive else exit_codes.DONE


def _next_line(interactive: bool) -> str | None:
    """The next message, None at the end of input. Raises: UnicodeError for a line that is not UTF-8, and goes on after it."""
    if sys.stdin is None:
        return None
    if not interactive:
        return sys.stdin.buffer.readline().decode("utf-8") or None
    try:
        line = input("\n› ")
        line.encode("utf-8")  # in the C locale wrong bytes arrive as lone surrogates
        return line
    except EOFError:
        return None


def _say(talker: Talker, messages: list[dict[str, str]], asked: dict[str, Any]) -> tuple[str, bool]:
    """Print the answer as it comes and its timing. Returns its text, and whether Ctrl-C cut it short."""
    pieces = talker.reply(messages, asked)
    so_far: list[str] = []
    try:
        while True:
            piece = next(pieces)
            so_far.append(piece)
            print(piece, end="", flush=True)
    except StopIteration as stop:
        answer: Answer = stop.value
        print(flush=True)
        note(dim(timing_line(answer)))
        return answer.text, False
    except KeyboardInterrupt:
        print(flush=True)
        note(dim("stopped"))
        return "".join(so_far), True
    except BaseException:
        if so_far:
            print(flush=True)
        raise
    finally:
        pieces.close()
