"""The jinja2 environment of chat templates: the dialect of Hugging Face's templates, in a sandbox with budgets.

A template comes with the model file, so it is foreign code: it cannot reach Python (jinja2's immutable sandbox), and every
loop turn, call, filter, comparison and made text is paid from one budget (template_budget.py), which also watches the CPU
time. What could make much out of little in a single operation (repetition, padding, replacing, joining, formats, powers)
is checked before it runs.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hasten.tokenizer import template_charges
from hasten.tokenizer.template_budget import Budget, Turns, current, running

MAX_REPEAT = 1 << 20  # characters or items that one operation may make out of less
MAX_FORMAT_WIDTH = 10_000  # characters of one field
MAX_INT_BITS = 4096
MAX_TIME_FORMAT = 1000  # characters; each may give up to 256
MAX_OUTPUT_CHARS = 1 << 20  # beyond OUTPUT_PER_INPUT characters for each character of the messages
OUTPUT_PER_INPUT = 8

_WIDE_FIELD = re.compile(r"\d{5,}|\*")  # of a % format
_WIDE_BRACES = re.compile(r"\d{5,}|\{[^{}]*\{")  # of str.format: a long number, or a width that is an argument
# no chat template needs them: random text, or texts much longer than what they are made from
_LEFT_OUT = (
    "filesizeformat", "forceescape", "pprint", "random", "striptags", "urlencode", "urlize", "wordwrap", "xmlattr",
)  # fmt: skip
# methods that no template needs: texts become bytes, or much longer
_REFUSED = frozenset({"encode", "to_bytes", "striptags", "translate"})
# methods whose time is a product, and how many pairs of characters take as long as the cheapest step (0.4 µs)
_PAIRS_PER_STEP = {
    **dict.fromkeys(("strip", "lstrip", "rstrip"), 1 << 15),
    **dict.fromkeys(("rfind", "rindex", "rsplit", "rpartition"), 1 << 10),
}
# filters that look at their argument from outside …
_CHEAP = frozenset({"length", "count", "first", "last", "default", "d", "items", "abs", "float", "int", "round", "attr"})
# … or at each of its items once; the others may print or compare all that is in it
_SHALLOW = frozenset({"map", "select", "selectattr", "reject", "rejectattr", "list", "reverse", "batch", "slice", "sum"})
_COMPARING = frozenset(
    {
        "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt", "ne",
    }
)  # fmt: skip


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here its body is just printed."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates (`from_string`); `render` runs one. Thread-safe after construction."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})
    code_generator_class = template_charges.ChargingCodeGenerator

    def __init__(self) -> None:
        # trimmed blocks and loop controls are what the templates are written for
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            finalize=_paid_print,
        )
        for name in _LEFT_OUT:
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters = {name: _paid_filter(name, function) for name, function in self.filters.items()}
        self.filters |= template_charges.FILTERS
        self.tests = {name: _paid_test(name, cast(Any, function)) for name, function in self.tests.items()}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["range"] = _range
        del self.globals["lipsum"]  # random text has no place in a prompt

    def compile_template(self, source: str) -> jinja2.Template:
        """Raises: TemplateSyntaxError, and what Python's compiler raises."""
        with running(Budget()):  # constant parts are computed here; what is refused now is refused again when it runs
            return self.from_string(source)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.spend(1)
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        name = getattr(method, "__name__", "")
        if name in _REFUSED and isinstance(owner, str | int):
            raise jinja2.TemplateRuntimeError(f"{name} is not for templates")
        if isinstance(owner, str):
            args = _bounded_call(name, owner, args, kwargs)
        elif isinstance(obj, LoopContext) and args:
            args = (Turns(args[0], budget, 1), *args[1:])  # a loop that calls itself
        return budget.made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(left, right)
        elif operator == "**" and max(abs(left), abs(right)) > 1024:
            raise jinja2.TemplateRuntimeError("a power of, or to, a number above 1024")
        elif operator == "%" and isinstance(left, str):
            _check_format(left, "%", right)
        return current().made(super().call_binop(context, operator, left, right))

    def render(self, template: jinja2.Template, variables: Mapping[str, Any], *, num_messages: int, num_chars: int) -> str:
        """The text of `template` for a conversation of that size.

        Raises: whatever the template's code raises; TemplateRuntimeError when a budget is used up.
        """
        with running(Budget(num_messages, num_chars)):
            return "".join(_limited(template.generate(variables), MAX_OUTPUT_CHARS + OUTPUT_PER_INPUT * num_chars))


def _limited(pieces: Iterator[str], max_chars: int) -> Iterator[str]:
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > max_chars:
            raise jinja2.TemplateRuntimeError(f"the output is longer than {max_chars} characters")
        yield piece


def _paid_print(value: Any) -> Any:
    current().weigh(value)
    return value


def _paid_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for what it gets and for what it makes. `wraps` keeps the marks that jinja2 puts on filters."""
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context or environment comes first

    @functools.wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        if name in _CHEAP:
            budget.spend(1)
            return function(*args, **kwargs)
        given = [budget.made(value) if isinstance(value, Iterator) else value for value in args[skip:]]
        if name == "join" and given:
            given[0] = list(given[0])
        for value in (*given, *kwargs.values()):
            budget.weigh_outside(value) if name in _SHALLOW else budget.weigh(value)
        _check_filter(name, given, kwargs)
        return budget.made(function(*args[:skip], *given, **kwargs))

    return paid


def _paid_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def paid(*args: Any) -> Any:
        for value in args:
            current().weigh(value) if name in _COMPARING else current().spend(1)
        return function(*args)

    return paid


def _check_filter(name: str, given: list[Any], kwargs: Mapping[str, Any]) -> None:
    values = [*given, *kwargs.values()]
    _check_widths(values)
    texts = [value if isinstance(value, str) else "" for value in values]
    if name == "replace" and len(values) > 2:
        _check_made(str(given[0]).count(str(values[1])) * len(str(values[2])))
    elif name == "join":
        _check_made(len(given[0]) * max(map(len, texts)))
    elif name == "indent":
        _check_made(texts[0].count("\n") * max(_num_chars(value) for value in (4, *values[1:])))
    elif name == "format":
        _check_format(str(given[0]), "%", values[1:])
    elif name == "trim":
        _pay_pairs("strip", texts[0], values[1:])
    elif name == "sum" and any(not isinstance(value, int | float) for value in (*given[2:], kwargs.get("start", 0))):
        raise jinja2.TemplateRuntimeError("sum adds numbers")
    elif name == "tojson" and any(_num_chars(value) > 16 for value in values[1:]):
        raise jinja2.TemplateRuntimeError("an indent or separator of more than 16 characters")


def _bounded_call(name: str, owner: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments for a method of a text. Raises TemplateRuntimeError for those that would make too much of it."""
    budget, values = current(), [*args, *kwargs.values()]
    budget.weigh(owner)
    _check_widths(values)
    if name == "join" and args:
        args = (list(budget.made(args[0])), *args[1:])
        budget.weigh(args[0])
        _check_made(len(owner) * len(args[0]))
    elif name == "replace" and len(values) > 1:
        _check_made(owner.count(values[0]) * len(values[1]))
    elif name == "expandtabs":
        _check_made(owner.count("\t") * max(_num_chars(value) for value in (8, *values)))
    elif name in ("format", "format_map"):
        _check_format(owner, "{", values)
    else:
        _pay_pairs(name, owner, values)
    return args


def _pay_pairs(name: str, text: str, values: list[Any]) -> None:
    """Pay for a method or filter that compares every character of `text` with every one of its argument."""
    pairs_per_step = _PAIRS_PER_STEP.get(name)
    if pairs_per_step:
        longest = max((len(value) for value in values if isinstance(value, str)), default=0)
        current().spend(len(text) * longest // pairs_per_step)


def _check_product(left: Any, right: Any) -> None:
    for items, times in ((left, right), (right, left)):
        if isinstance(items, Sized) and isinstance(times, int) and len(items) * times > MAX_REPEAT:
            raise jinja2.TemplateRuntimeError(f"a repetition makes more than {MAX_REPEAT} items")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_INT_BITS:
        raise jinja2.TemplateRuntimeError(f"a product of more than {MAX_INT_BITS} bits")


def _check_format(text: str, mark: str, values: Any) -> None:
    if (_WIDE_FIELD if mark == "%" else _WIDE_BRACES).search(text):
        raise jinja2.TemplateRuntimeError("a format field that is too wide")
    budget = current()
    before = budget.left
    budget.weigh(values)
    num_fields = text.count(mark)
    widest = MAX_FORMAT_WIDTH if any(digit in text for digit in "123456789") else 32
    # every field may print everything
    budget.spend(num_fields * (before - budget.left))
    _check_made(num_fields * widest)


def _check_widths(values: list[Any]) -> None:
    for value in values:
        if isinstance(value, int) and value > MAX_REPEAT:
            raise jinja2.TemplateRuntimeError(f"a width of {value}, the limit is {MAX_REPEAT}")


def _check_made(num_chars: int) -> None:
    if num_chars > MAX_REPEAT:
        raise jinja2.TemplateRuntimeError(f"an operation that makes more than {MAX_REPEAT} characters out of less")


def _num_chars(value: Any) -> int:
    """Of padding that is given as a number or as a text."""
    if isinstance(value, str | tuple | list):
        return len(value) if isinstance(value, str) else sum(map(_num_chars, value))
    return int(value) if isinstance(value, int) else 0


def _range(*args: int) -> range:
    turns = range(*args)
    current().spend(len(turns))  # also for what runs through it at once
    return turns


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 (templates may name it)
    if len(format) > MAX_TIME_FORMAT:
        raise jinja2.TemplateRuntimeError(f"a time format of more than {MAX_TIME_FORMAT} characters")
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
