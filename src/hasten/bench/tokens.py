"""Counting tokens: by the server's own /tokenize, or by a local tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx

from hasten.errors import BadFile, UsageError

Messages = list[dict[str, Any]]


class TokenCounter(Protocol):
    """Tokens of a text and of a whole chat prompt."""

    name: str

    def count(self, text: str) -> int:
        """Tokens of the bare text, no start token."""
        ...

    def count_prompt(self, text: str, *, chat: bool) -> int | None:
        """Tokens of the whole prompt when `text` is the one user message (chat) or the text prompt; None: not known."""
        ...

    def close(self) -> None:
        """Let go of connections; counting again opens them again."""
        ...


class LocalCounter:
    """A tokenizer.json read by the `tokenizers` library. It knows no chat template."""

    def __init__(self, path: Path) -> None:
        """Raises BadFile."""
        from tokenizers import Tokenizer

        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise BadFile(f"cannot read the tokenizer {file}: {error}") from None
        self.name = f"local {file.name}"

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def count_prompt(self, text: str, *, chat: bool) -> int | None:
        return None if chat else len(self._tokenizer.encode(text, add_special_tokens=True).ids)

    def close(self) -> None:
        pass


class ServerCounter:
    """The server's /tokenize, in the shape of hasten and vLLM, of llama-server, or of TGI; found by trying."""

    def __init__(self, base_url: str, model: str, *, headers: Mapping[str, str] | None = None) -> None:
        """Raises UsageError when the server has no tokenizer endpoint of a known shape."""
        self._base_url = base_url
        self._headers = dict(headers or {})
        self._open: httpx.Client | None = None
        self._model = model
        self._shape = ""
        self._added: frozenset[Any] = frozenset()  # TGI: ids of what is put around every text
        for shape in ("hasten", "llama-server", "tgi"):
            self._shape = shape
            if shape == "tgi":
                self._added = _ids_without_text(self._post("/tokenize", {"inputs": "one two"}))
            if (self._try("one two") or 0) > 0:
                self.name = f"{base_url}/tokenize ({'hasten or vLLM' if shape == 'hasten' else shape} shape)"
                return
        self.close()
        raise UsageError(
            f"{base_url} has no /tokenize of a known shape, so lengths cannot be exact: give --tokenizer a tokenizer.json, or "
            "--approximate-lengths"
        )

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        if self._open is None:  # first use, or used again after close
            self._open = httpx.Client(base_url=self._base_url, headers=self._headers, timeout=30.0, trust_env=False)
        try:
            answer = self._open.post(path, json=body)
        except httpx.HTTPError as error:
            self.close()
            raise UsageError(f"cannot reach {self._base_url}: {error}") from None
        if answer.status_code != 200:
            return None
        try:
            return answer.json()
        except ValueError:
            return None

    def _try(self, text: str, *, special: bool = False) -> int | None:
        if self._shape == "hasten":
            return _length(self._post("/tokenize", {"model": self._model, "prompt": text, "add_special_tokens": special}))
        if self._shape == "llama-server":
            return _length(self._post("/tokenize", {"content": text, "add_special": special}))
        tokens = self._post("/tokenize", {"inputs": text})  # it adds its start token, whatever the body says
        if special or not isinstance(tokens, list):
            return _length(tokens)
        return sum(_id(token) not in self._added for token in tokens)

    def count(self, text: str) -> int:
        count = self._try(text)
        if count is None:
            raise UsageError(f"{self.name} stopped answering while prompts were made")
        return count

    def count_prompt(self, text: str, *, chat: bool) -> int | None:
        if not chat:
            return self._try(text, special=True)
        messages = [{"role": "user", "content": text}]
        if self._shape == "hasten":
            return _length(self._post("/tokenize", {"model": self._model, "messages": messages}))
        if self._shape == "llama-server":
            rendered = self._post("/apply-template", {"messages": messages})
            return self._try(rendered["prompt"], special=True) if isinstance(rendered, dict) and "prompt" in rendered else None
        answer = self._post("/chat_tokenize", {"model": self._model, "messages": messages})
        return _length(answer.get("tokenize_response")) if isinstance(answer, dict) else None


class WordCounter:
    """No tokenizer at hand: a word is taken for a token. Results say so, and what the server counted."""

    name = "none: a word is taken for a token"

    def count(self, text: str) -> int:
        return len(text.split())

    def count_prompt(self, text: str, *, chat: bool) -> int | None:
        return None

    def close(self) -> None:
        pass


def _id(token: Any) -> Any:
    return token.get("id") if isinstance(token, dict) else None


def _ids_without_text(tokens: Any) -> frozenset[Any]:
    """Of plain words. In other texts a token without a span may also be blanks, as some tokenizers trim them off."""
    listed = tokens if isinstance(tokens, list) else []
    return frozenset(_id(token) for token in listed if isinstance(token, dict) and token.get("start") == token.get("stop"))


def _length(body: Any) -> int | None:
    if isinstance(body, list):
        return len(body)
    if isinstance(body, dict) and isinstance(body.get("tokens"), list):
        return len(body["tokens"])
    return None
