"""A conversation as the prompt text its model was trained on."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hasten.errors import TemplateError

if TYPE_CHECKING:
    import jinja2

    from hasten.tokenizer.template_sandbox import ChatEnvironment

MAX_TEMPLATE_CHARS = 1 << 17  # compiled within 0.5 s; the longest in use have some 20,000
MAX_COMPILED = 8  # templates kept compiled: the model's and overrides


class ChatTemplates:
    """Renders chats by the model's template or by one that the caller brings. Thread-safe.

    A template is compiled when it is first used, so that a model with a broken one can still complete raw text.

    Args:
        default: the model's template, if it has one.
        bos_token, eos_token: names of these tokens, "" if there is none; templates print them.
    """

    def __init__(self, default: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        self.default = default
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._environment: ChatEnvironment | None = None
        self._compiled: dict[str, jinja2.Template] = {}
        self._lock = threading.Lock()

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, template: str | None = None
    ) -> str:
        """The prompt text.

        Text parts of a message are joined by newlines, null content is empty text, and the arguments of a tool call, a
        JSON text on the wire, are given to the template as an object.

        Raises: TemplateError with the template's own words, or saying what is missing.
        """
        source = self.default if template is None else template
        if source is None:
            raise TemplateError(
                "the model's file has no chat template: start with --chat-template FILE, or send plain text to /v1/completions",
                param="messages",
            )
        plain = [_plain_message(i, message) for i, message in enumerate(messages)]
        environment, compiled = self._compile(source)
        variables = {
            **self._tokens,
            "messages": plain,
            "add_generation_prompt": add_generation_prompt,
            # templates ask whether these are none, which an undefined variable is not
            "tools": None,
            "documents": None,
        }
        try:
            return environment.render(
                compiled, variables, num_messages=len(plain), num_chars=sum(len(message["content"]) for message in plain)
            )
        except RecursionError:
            raise TemplateError("chat template: it calls itself too deeply", param="messages") from None
        except Exception as error:  # the template is foreign code: it can raise anything
            raise TemplateError(f"chat template: {_words(error)}", param="messages") from error

    def _compile(self, source: str) -> tuple[ChatEnvironment, jinja2.Template]:
        with self._lock:
            if self._environment is None:
                from hasten.tokenizer.template_sandbox import ChatEnvironment  # jinja2 takes 40 ms: not at start

                self._environment = ChatEnvironment()
            compiled = self._compiled.get(source)
            if compiled is None:
                compiled = _compile(self._environment, source)
                if len(self._compiled) >= MAX_COMPILED:
                    del self._compiled[next(iter(self._compiled))]
                self._compiled[source] = compiled
            return self._environment, compiled


def check_template(source: str) -> None:
    """Raises: TemplateError naming the line, when `source` does not compile."""
    from hasten.tokenizer.template_sandbox import ChatEnvironment  # as above

    _compile(ChatEnvironment(), source)


def _compile(environment: ChatEnvironment, source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_CHARS:
        raise TemplateError(f"chat template: it has {len(source)} characters, the limit is {MAX_TEMPLATE_CHARS}")
    try:
        return environment.compile_template(source)
    except RecursionError:
        raise TemplateError("chat template: it is nested too deeply", param="messages") from None
    except Exception as error:  # jinja2's syntax errors, and those of the Python code it makes
        line = getattr(error, "lineno", None)
        where = f" line {line}" if line else ""
        raise TemplateError(f"chat template{where}: {_words(error)}", param="messages") from error


def _words(error: Exception) -> str:
    """What the error says, with its class where that alone would be a riddle (KeyError: 'x')."""
    is_plain = type(error).__module__.startswith("jinja2") and str(error)
    return str(error) if is_plain else f"{type(error).__name__}: {error}"


def _plain_message(position: int, message: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(message)
    plain["content"] = _plain_content(position, message.get("content"))
    if isinstance(message.get("tool_calls"), list):
        plain["tool_calls"] = [_plain_tool_call(call) for call in message["tool_calls"]]
    return plain


def _plain_content(position: int, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    where = f"messages[{position}].content"
    if not isinstance(content, (list, tuple)):
        raise TemplateError(f"{where} must be a text or a list of parts, it is {type(content).__name__}", param="messages")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(
                f"{where}[{i}] is of type {kind!r}, this model takes parts of type 'text' with a 'text'", param="messages"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _plain_tool_call(call: object) -> object:
    """The call with its arguments as an object, if they are the JSON text of one."""
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        return call
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": value}} if isinstance(value, dict) else call
