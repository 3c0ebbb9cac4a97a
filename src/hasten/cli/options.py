"""Command-line options made from the dataclasses that hold the defaults: a default exists once, in its dataclass.

An option of `EngineConfig` or `ServerConfig` named `max_model_len` is `--max-model-len` and `HASTEN_MAX_MODEL_LEN`; where
the field may be None, `auto` is the word for it. The values of a repeatable option are separated by commas in its variable.
"""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Union

from cyclopts import Parameter, Token

from hasten.config import EngineConfig, ServerConfig, range_text
from hasten.request import RANGES, SamplingParams

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


def values_of(text: str) -> list[str]:
    """The values in a variable of a repeatable option."""
    return [value for part in text.split(",") if (value := part.strip())]


def key_to_send(asked: str | None) -> str | None:
    """A client's API key: what was asked for, else the first of HASTEN_API_KEY, else OPENAI_API_KEY."""
    if asked is not None:
        return asked
    return next(iter(values_of(os.environ.get("HASTEN_API_KEY", ""))), None) or os.environ.get("OPENAI_API_KEY") or None


def is_shown(default: object) -> bool:
    """Whether help says it: nothing of an empty list or a flag that is off (but 0 is a number, though 0 == False)."""
    return default is not False and default != ()


def _is_optional(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (Union, types.UnionType) and type(None) in typing.get_args(annotation)


def _auto_or(kind: type, named: Mapping[str, int]) -> Any:
    """A converter that reads `auto` as None, a word of `named` as its number, and everything else as `kind`."""

    def convert(_type: Any, tokens: Sequence[Token]) -> Any:
        text = tokens[0].value
        if text.lower() == "auto":
            return None
        if text.lower() in named:
            return named[text.lower()]
        try:
            return kind(text)
        except ValueError:
            known = ", ".join(("auto", *named))
            raise ValueError(f"{text!r} is neither {known} nor a {NUMBER_WORDS.get(kind, kind.__name__)}") from None

    return convert


def _annotated(name: str, annotation: Any, metadata: Mapping[str, Any]) -> Any:
    limits = range_text(metadata["low"], metadata["high"])
    words: dict[str, Any] = {"help": metadata["help"] + (f" ({limits})" if limits else "")}
    words["env_var"] = f"HASTEN_{name.upper()}"
    if typing.get_origin(annotation) is tuple:
        # empty ones are kept for the server to refuse: a key that came out empty must not mean that none is needed
        words["env_var_split"] = lambda _kind, text, delimiter=None: [part.strip() for part in text.split(",")]
        words["json_list"] = False
    if annotation is bool:
        words["negative"] = ()
    if _is_optional(annotation):
        kind = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
        words["converter"] = _auto_or(kind, metadata["words"])
        words["n_tokens"] = 1
    return Annotated[annotation, Parameter(**words)]


def options_of(config: type[Any], texts: Mapping[str, str] | None = None) -> Any:
    """A dataclass with the fields of `config`, described for the command line.

    Args:
        texts: help by field name, for a config that is part of a request and not of the environment: only these fields,
            each of them None until asked for. None takes every field, its help from `metadata["help"]`.
    """
    hints = typing.get_type_hints(config)
    fields = []
    for field in dataclasses.fields(config):
        kind = hints[field.name]
        if texts is None:
            annotated, default = _annotated(field.name, kind, field.metadata), field.default
        elif field.name in texts:
            annotated, default = _asked(field, kind, texts[field.name]), None
        else:
            continue
        fields.append((field.name, annotated, dataclasses.field(default=default)))
    # the module's name matters: cyclopts does not look into classes of built-in modules, which is where make_dataclass puts it
    namespace = {"__module__": __name__}
    made = dataclasses.make_dataclass(f"{config.__name__}Options", fields, frozen=True, namespace=namespace)
    return Parameter(name="*")(made)


def _asked(field: dataclasses.Field[Any], kind: Any, text: str) -> Any:
    """An option that is None unless given; help shows what the request then has, and its range."""
    shown = "auto" if field.default is None else str(field.default)
    limits = f" (in {RANGES[field.name]})" if field.name in RANGES else ""
    words: dict[str, Any] = {"help": text + limits, "show_default": (lambda _: shown) if is_shown(field.default) else False}
    if kind is bool:
        words["negative"] = ()
    return Annotated[kind if _is_optional(kind) else kind | None, Parameter(**words)]


if TYPE_CHECKING:  # what a command sees: an object with these fields
    EngineOptions = EngineConfig
    ServerOptions = ServerConfig
    SamplingOptions = SamplingParams  # with None for every field that was not asked for
else:
    EngineOptions = options_of(EngineConfig)
    ServerOptions = options_of(ServerConfig)
    SamplingOptions = options_of(SamplingParams, SAMPLING_HELP)


ENGINE_DEFAULTS = EngineOptions()
SERVER_DEFAULTS = ServerOptions()
SAMPLING_DEFAULTS = SamplingOptions()


def engine_config(options: EngineOptions) -> EngineConfig:
    """The values, not yet checked: the engine does that when it loads."""
    return EngineConfig(**_values(options))


def server_config(options: ServerOptions) -> ServerConfig:
    """The values, not yet checked: the server does that when it starts."""
    return ServerConfig(**_values(options))


def asked_sampling(options: SamplingOptions) -> dict[str, Any]:
    """The sampling fields that were asked for. Raises: InvalidRequest naming the field."""
    asked = {name: value for name in SAMPLING_HELP if (value := getattr(options, name)) is not None}
    SamplingParams(**asked)  # checks them
    return asked


def _values(options: Any) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
