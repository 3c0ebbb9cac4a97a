"""The jinja2 environment of chat templates: the dialect of Hugging Face's templates, in a sandbox with budgets.

A template comes with the model file, so it is foreign code: it cannot reach Python (jinja2's immutable sandbox), and calls,
`range` turns, repetition, padding and output are bounded. Loops over the messages themselves are not: they are as long
as the request.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CALLS = 100_000  # calls and range turns of one rendering, 1 s at worst; a chat of 1,000 messages makes some 10,000
MAX_REPEAT = 1 << 20  # characters or items that one repetition or padding may make
MAX_OUTPUT_CHARS = 1 << 20  # beyond OUTPUT_PER_INPUT characters for each character of the messages
OUTPUT_PER_INPUT = 8

_BUDGET = "hasten_budget"  # name of the variable that carries the budget of a rendering
_WIDE_FIELD = re.compile(r"\d{5,}|\*")  # of a % format


class _Budget:
    """Counts what a rendering may still do."""

    def __init__(self) -> None:
        self.left = MAX_CALLS

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise jinja2.TemplateRuntimeError(f"more than {MAX_CALLS} calls and loop turns: the template does not end")

    def range(self, *args: int) -> range:
        turns = range(*args)
        self.spend(len(turns))
        return turns


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here its body is just printed."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates; `render` runs one. Thread-safe after construction."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        # trimmed blocks and loop controls are what the templates are written for
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag])
        for name in ("center", "indent", "batch", "slice"):
            self.filters[name] = _bounded(FILTERS[name])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]  # random text has no place in a prompt

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        context[_BUDGET].spend(1)
        if isinstance(getattr(obj, "__self__", None), str):
            _check_sizes(args, kwargs)  # ljust, center, zfill, …
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(items, (str, list, tuple)) and isinstance(times, int) and len(items) * times > MAX_REPEAT:
                    raise jinja2.TemplateRuntimeError(f"a repetition makes more than {MAX_REPEAT} items")
        elif operator == "**" and max(abs(left), abs(right)) > 1024:
            raise jinja2.TemplateRuntimeError("a power of, or to, a number above 1024")
        elif operator == "%" and isinstance(left, str) and _WIDE_FIELD.search(left):
            raise jinja2.TemplateRuntimeError("a format field that is too wide")
        return super().call_binop(context, operator, left, right)

    def render(self, template: jinja2.Template, variables: Mapping[str, Any], *, max_chars: int) -> str:
        """Raises: whatever the template's code raises; TemplateRuntimeError when a budget is used up."""
        budget = _Budget()
        pieces = template.generate({**variables, "range": budget.range, _BUDGET: budget})
        return "".join(_limited(pieces, max_chars))


def _limited(pieces: Iterator[str], max_chars: int) -> Iterator[str]:
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > max_chars:
            raise jinja2.TemplateRuntimeError(f"the output is longer than {max_chars} characters")
        yield piece


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses huge widths. `wraps` keeps the marks that jinja2 puts on its filters."""

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_sizes(args, kwargs)
        return function(*args, **kwargs)

    return bounded


def _check_sizes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and value > MAX_REPEAT:
            raise jinja2.TemplateRuntimeError(f"a width of {value}, the limit is {MAX_REPEAT}")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 (templates may name it)
    return datetime.datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja2's own filter, which would reach the model as text."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
