"""`hasten generate`: one answer and its timing."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Generator
from typing import Annotated

from cyclopts import Parameter

from hasten import exit_codes
from hasten.cli import options
from hasten.cli.answer import Answer, timing_line
from hasten.cli.terminal import ProgressLine, dim, note
from hasten.errors import UsageError
from hasten.weights import registry

CHAT_HELP = "put the text into the model's chat template, or go on from it as it is; default: the template if there is one"


def generate(
    model: str,
    /,
    *,
    prompt: Annotated[
        str | None, Parameter(name=["--prompt", "-p"], help="the text; without it standard input is read", show_default=False)
    ] = None,
    system: Annotated[str | None, Parameter(help="system message for the chat template", show_default=False)] = None,
    chat: Annotated[bool | None, Parameter(name="--chat", negative="--raw", help=CHAT_HELP, show_default=False)] = None,
    as_json: Annotated[bool, Parameter(name="--json", help="print answer and timing as a JSON object", negative=())] = False,
    sampling: options.SamplingOptions = options.SAMPLING_DEFAULTS,
    engine: options.EngineOptions = options.ENGINE_DEFAULTS,
) -> int:
    """One answer and its timing.

    The answer goes to standard output as it is written, its timing to standard error. Ctrl-C ends it with what there is so far.

    Args:
        model: a GGUF file, an alias (smollm2), or the name of a file in the models folder.
    """
    config = options.engine_config(engine)
    asked = options.asked_sampling(sampling)
    text = _prompt(prompt)
    with ProgressLine(f"pulling {model}") as progress:
        found = registry.resolve(model, fetch=True, progress=progress)
    from hasten.cli.local import LocalModel

    local = LocalModel(found, config)
    try:
        use_chat = local.has_chat_template if chat is None else chat
        if system is not None and not use_chat:
            raise UsageError("--system needs a chat template: this model has none, or --raw turned it off")
        if use_chat:
            messages = [{"role": "system", "content": system}] if system is not None else []
            pieces = local.reply([*messages, {"role": "user", "content": text}], asked)
        else:
            pieces = local.complete(text, asked)
        return _print(pieces, found.name, as_json=as_json)
    finally:
        local.close()


def _prompt(prompt: str | None) -> str:
    """The option, else standard input. Raises: UsageError if it is empty, or standard input is a terminal or not UTF-8."""
    if prompt is None and sys.stdin is not None and not sys.stdin.isatty():
        prompt = _standard_input()
    if not prompt:
        raise UsageError("there is no text: give -p TEXT, or pipe it in")
    return prompt


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}") from error


def _print(pieces: Generator[str, None, Answer], model: str, *, as_json: bool) -> int:
    """Write the answer piece by piece, or as JSON at its end; Ctrl-C ends it with what there is so far."""
    so_far: list[str] = []
    try:
        while True:
            try:
                piece = next(pieces)
            except StopIteration as stop:
                answer: Answer = stop.value
                break
            so_far.append(piece)
            if not as_json:
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(json.dumps({"model": model, "text": "".join(so_far), "finish_reason": "cancelled"}) if as_json else "")
        return exit_codes.INTERRUPTED
    except BaseException:
        if so_far and not as_json:
            print(flush=True)  # the message on stderr starts a line
        raise
    finally:
        pieces.close()
    if as_json:
        print(json.dumps({"model": model, **dataclasses.asdict(answer)}))
    else:
        print(flush=True)
        note(dim(timing_line(answer)))
    return exit_codes.DONE
