"""Every error hasten raises on purpose.

    HastenError
    ├── UsageError              the caller's words are wrong                        exit 2, HTTP 400
    │   ├── InvalidRequest      a request field is wrong; carries the field's name
    │   │   ├── PromptTooLong   the prompt does not fit the context or the KV pool
    │   │   └── TemplateError   the chat template refused the messages, or there is none
    │   ├── UnknownModel        no model of that name                               HTTP 404
    │   ├── Unauthorized        missing or wrong API key                            HTTP 401
    │   ├── ForbiddenOrigin     a web page that is not allowed here                 HTTP 403
    │   └── BodyTooLarge        the body is over the limit                          HTTP 413
    ├── ModelError              a model file cannot be used                         exit 1
    │   ├── BadFile             damaged, cut off, or lying about its sizes
    │   └── Unsupported         well formed, but of a kind hasten does not know
    ├── DoesNotFit              memory: says what was needed and what there is      exit 4
    ├── EngineStopped           the engine is shutting down or has failed           HTTP 503
    ├── OutOfBlocks             internal: the scheduler preempts; never reaches a user
    └── ShapeError              an array of the wrong shape or type

The server maps class to HTTP status in one table (`server/errors.py`), the command line maps class to exit code.
"""

from __future__ import annotations


class HastenError(Exception):
    """Base of all of the above."""


class UsageError(HastenError):
    """What the caller asked for cannot be done as asked."""


class InvalidRequest(UsageError):  # noqa: N818 (a field's word: the request is invalid)
    """A field of a request has a wrong value.

    Args:
        message: what happened, the numbers, what to do.
        param: name of the field as the client wrote it, for OpenAI's `param`.
        code: OpenAI's machine-readable code, for example `context_length_exceeded`.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class PromptTooLong(InvalidRequest):
    """The prompt alone is longer than the context, or than the KV pool can ever hold."""

    def __init__(self, message: str, *, param: str | None = "prompt") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class TemplateError(InvalidRequest):
    """The chat template raised, or the model has none."""


class UnknownModel(UsageError):  # noqa: N818
    """No served model has that name."""


class Unauthorized(UsageError):  # noqa: N818
    """The API key is missing or wrong."""


class ForbiddenOrigin(UsageError):  # noqa: N818
    """A browser sent the request for a web page that may not use this server."""


class BodyTooLarge(UsageError):  # noqa: N818
    """The HTTP body is over the limit."""


class ModelError(HastenError):
    """A model file cannot be used."""


class BadFile(ModelError):  # noqa: N818
    """The file is damaged, cut off, or its header lies."""


class Unsupported(ModelError):  # noqa: N818
    """The file is well formed but needs something hasten does not have; the message names what it has."""


class DoesNotFit(HastenError):  # noqa: N818
    """Memory: the message says what was needed, what there is, and which option changes it."""


class EngineStopped(HastenError):  # noqa: N818
    """The engine takes no more requests."""


class OutOfBlocks(HastenError):  # noqa: N818
    """The block pool cannot serve an acquire; nothing was taken."""


class ShapeError(HastenError, ValueError):
    """An array has the wrong shape or type."""
