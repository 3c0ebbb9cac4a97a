"""Any OpenAI-compatible server as a partner in `hasten chat`."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import httpx

from hasten.cli.answer import Answer, Message
from hasten.errors import HastenError, UnknownModel, UsageError

READ_TIMEOUT_S = 600.0  # a long prompt on a slow machine is silent until its first token


class RemoteServer:
    """A server and one of its models.

    Args:
        url: the server's address, with or without /v1.
        model: name of the model; None takes the first that the server lists.
    Raises: HastenError if it cannot be reached or answers with an error; UnknownModel naming the known.
    """

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        base = url.rstrip("/")
        self._base = base if base.endswith("/v1") else f"{base}/v1"
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(headers=headers, timeout=httpx.Timeout(READ_TIMEOUT_S, connect=10.0))
        try:
            self.name = self._choose(model)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._http.close()

    def _choose(self, model: str | None) -> str:
        try:
            answer = self._http.get(f"{self._base}/models")
            _check(answer)
            names = [str(entry["id"]) for entry in answer.json()["data"]]
        except httpx.InvalidURL as error:
            raise UsageError(f"{self._base}: {error}") from error
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise HastenError(f"{self._base}/models did not answer with a list of models") from error
        if model is None and names:
            return names[0]
        if model in names and model is not None:
            return model
        raise UnknownModel(f"{self._base} has {', '.join(names) or 'no model'}, not {model!r}")

    def reply(self, messages: Sequence[Message], sampling: Mapping[str, Any]) -> Generator[str, None, Answer]:
        """See Talker."""
        body: dict[str, Any] = {"model": self.name, "messages": list(messages), "stream": True}
        body["stream_options"] = {"include_usage": True}
        body.update(sampling)
        start_s = time.monotonic()
        times_s: list[float] = []
        pieces: list[str] = []
        usage: Mapping[str, Any] = {}
        finish_reason = "stop"
        try:
            with self._http.stream("POST", f"{self._base}/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                _check(answer)
                for event in _events(answer.iter_lines()):
                    usage = event.get("usage") or usage
                    for choice in event.get("choices") or ():
                        finish_reason = choice.get("finish_reason") or finish_reason
                        # an empty or role-only chunk is not a token
                        if text := (choice.get("delta") or {}).get("content"):
                            times_s.append(time.monotonic())
                            pieces.append(text)
                            yield text
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        num_tokens = usage.get("completion_tokens")
        return Answer(
            text="".join(pieces),
            finish_reason=finish_reason,
            ttft_ms=(times_s[0] - start_s) * 1e3 if times_s else None,
            tpot_ms=_tpot_ms(times_s, num_tokens),
            wall_ms=(time.monotonic() - start_s) * 1e3,
            prompt_tokens=usage.get("prompt_tokens"),
            completion_tokens=num_tokens,
        )

    def _unreachable(self, error: httpx.HTTPError) -> HastenError:
        return HastenError(f"{self._base}: {str(error) or type(error).__name__}")


def _tpot_ms(times_s: Sequence[float], num_tokens: int | None) -> float | None:
    """(last − first) / (n − 1); n is the server's count, else that of the chunks, of which each may hold several tokens."""
    count = num_tokens or len(times_s)
    return (times_s[-1] - times_s[0]) * 1e3 / (count - 1) if len(times_s) > 1 and count > 1 else None


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """JSON objects of a server-sent event stream, up to [DONE]. Raises: HastenError for an error event or garbage."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except json.JSONDecodeError as error:
            raise HastenError(f"the server sent an event that is not JSON: {data[:80]!r}") from error
        if not isinstance(event, dict):
            raise HastenError(f"the server sent an event that is not an object: {data[:80]!r}")
        if "error" in event:
            raise HastenError(_message_of(event) or "the server ended the answer with an error")
        yield event


def _check(answer: httpx.Response) -> None:
    """Raises: HastenError with the server's own words."""
    if answer.status_code == 200:
        return
    try:
        words = _message_of(answer.json())
    except ValueError:
        words = None
    raise HastenError(f"the server answered {answer.status_code}: {words or answer.reason_phrase or answer.text[:200]}")


def _message_of(body: Any) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return None if message is None else str(message)
