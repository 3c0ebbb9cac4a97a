"""What the rest of hasten knows of a tokenizer; `hasten.tokenizer.load` builds one from TokenizerData."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

# shorter texts tokenize in well under a millisecond, less than a thread costs
INLINE_CHARS = 2000


class Tokenizer(Protocol):
    """Text to ids and back. Thread-safe: no method changes state."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens: never part of an answer's text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; special tokens written in the text are recognised. With add_special_tokens the model's BOS is
        put in front when the file asks for it and the text does not start with it already."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids, invalid UTF-8 as U+FFFD, no clean-up of spaces."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token stands for (a control token: the bytes of its name)."""
        ...

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        template: str | None = None,
    ) -> str:
        """The prompt text of a conversation, by the model's chat template (or `template`), in a sandbox.

        Raises: TemplateError with the template's own words, or saying that there is none and that --chat-template
        supplies one.
        """
        ...
