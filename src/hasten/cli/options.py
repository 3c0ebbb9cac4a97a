"""Command-line options made from the dataclasses that hold the defaults: a default exists once, in its dataclass.

An option of `EngineConfig` or `ServerConfig` named `max_model_len` is `--max-model-len` and `HASTEN_MAX_MODEL_LEN`; where
the field may be None, `auto` is the word for it.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union

from cyclopts import Parameter, Token

from hasten.config import EngineConfig, ServerConfig, parse_size
from hasten.errors import UsageError
from hasten.request import SamplingParams

Config = TypeVar("Config")

NUMBER_WORDS = {int: "whole number", float: "number"}

SAMPLING_HELP: Mapping[str, str] = {
    "max_tokens": "most tokens of the answer; auto: the rest of the context",
    "temperature": "0 always takes the most likely token",
    "top_k": "draw from the k most likely tokens only; 0 is off",
    "top_p": "draw from the most likely tokens that hold this share of the probability; 1 is off",
    "min_p": "leave out tokens less likely than this share of the most likely one; 0 is off",
    "seed": "makes drawing repeatable; auto: drawn at the start and shown with --json",
    "stop": "text that ends the answer and is not part of it; repeatable",
    "ignore_eos": "go on past the model's end token",
    "repetition_penalty": "divides the scores of tokens in prompt and answer; 1 is off",
    "presence_penalty": "taken off the score of every token already in the answer; 0 is off",
    "frequency_penalty": "the same, once per occurrence; 0 is off",
}


def _is_optional(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (Union, types.UnionType) and type(None) in typing.get_args(annotation)


def _auto_or(kind: type) -> Any:
    """A converter that reads `auto` as None and everything else as `kind`."""

    def convert(_type: Any, tokens: Sequence[Token]) -> Any:
        text = tokens[0].value
        if text.lower() == "auto":
            return None
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is neither auto nor a {NUMBER_WORDS.get(kind, kind.__name__)}") from None

    return convert


def _annotated(name: str, annotation: Any, text: str, env: bool) -> Any:
    words: dict[str, Any] = {"help": text}
    if env:
        words["env_var"] = f"HASTEN_{name.upper()}"
    if annotation is bool:
        words["negative"] = ()
    if _is_optional(annotation):
        kind = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
        words["converter"] = _auto_or(kind)
        words["n_tokens"] = 1
    return Annotated[annotation, Parameter(**words)]


def options_of(config: type[Any], texts: Mapping[str, str] | None = None, *, env: bool = True) -> Any:
    """A dataclass with the fields of `config`, described for the command line.

    Args:
        texts: help by field name, and the fields wanted; None takes `metadata["help"]` of every field.
    """
    hints = typing.get_type_hints(config)
    fields = []
    for field in dataclasses.fields(config):
        if texts is not None and field.name not in texts:
            continue
        text = field.metadata["help"] if texts is None else texts[field.name]
        fields.append((field.name, _annotated(field.name, hints[field.name], text, env), dataclasses.field(default=field.default)))
    # the module's name matters: cyclopts does not look into classes of built-in modules, which is where make_dataclass puts it
    namespace = {"__module__": __name__}
    made = dataclasses.make_dataclass(f"{config.__name__}Options", fields, frozen=True, namespace=namespace)
    return Parameter(name="*")(made)


def values_of(config: type[Config], options: Any) -> Config:
    """`config` with the values of `options`, an instance of `options_of(config)`."""
    return config(**{field.name: getattr(options, field.name) for field in dataclasses.fields(options)})


if TYPE_CHECKING:  # what a command sees: an object with these fields
    EngineOptions = EngineConfig
    ServerOptions = ServerConfig
    SamplingOptions = SamplingParams
else:
    EngineOptions = options_of(EngineConfig)
    ServerOptions = options_of(ServerConfig)
    SamplingOptions = options_of(SamplingParams, SAMPLING_HELP, env=False)


ENGINE_DEFAULTS = EngineOptions()
SERVER_DEFAULTS = ServerOptions()
SAMPLING_DEFAULTS = SamplingOptions()


def engine_config(options: EngineOptions) -> EngineConfig:
    """Raises: UsageError naming the option, its value and what it may be."""
    for name in ("threads", "max_model_len", "max_num_seqs", "chunk", "max_num_batched_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {value}, it must be 1 or more")
    if options.memory is not None:
        _check_size("--memory", options.memory)
    return values_of(EngineConfig, options)


def server_config(options: ServerOptions) -> ServerConfig:
    """Raises: UsageError naming the option, its value and what it may be."""
    if not 0 <= options.port <= 65535:
        raise UsageError(f"--port is {options.port}, it must be in [0, 65535]")
    if not (math.isfinite(options.grace_s) and options.grace_s >= 0):
        raise UsageError(f"--grace-s is {options.grace_s}, it must be 0 or more seconds")
    _check_size("--max-body", options.max_body)
    if options.chat_template is not None and not Path(options.chat_template).is_file():
        raise UsageError(f"--chat-template: no such file: {options.chat_template}")
    return values_of(ServerConfig, options)


def sampling_params(options: SamplingOptions) -> SamplingParams:
    """Raises: InvalidRequest naming the field."""
    return values_of(SamplingParams, options)


def _check_size(option: str, text: str) -> None:
    try:
        parse_size(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
