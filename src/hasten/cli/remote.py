"""Any OpenAI-compatible server as a partner in `hasten chat`."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import httpx

from hasten.bench.answer import AnswerReader, error_words
from hasten.bench.record import RequestRecord
from hasten.bench.request_metrics import request_metrics
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
        start_ns = time.perf_counter_ns()
        reader = AnswerReader(RequestRecord(id=self.name, intended_ns=start_ns, sent_ns=start_ns), keep_text=True)
        try:
            with self._http.stream("POST", f"{self._base}/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                _check(answer)
                for data in answer.iter_bytes():
                    num_before = len(reader.text)
                    reader.feed(data, time.perf_counter_ns())
                    yield from reader.text[num_before:]
                    if reader.done or reader.record.error:
                        break
                reader.end(time.perf_counter_ns())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return _answer(reader)

    def _unreachable(self, error: httpx.HTTPError) -> HastenError:
        return HastenError(f"{self._base}: {str(error) or type(error).__name__}")


def _answer(reader: AnswerReader) -> Answer:
    """What the load generator would say of it. Raises: HastenError for an error event, garbage, or an answer without end."""
    record = reader.record
    if record.error == "truncated":
        raise HastenError(f"the answer was cut off: {record.error_detail}")
    if record.error == "garbage":
        raise HastenError(f"the server does not answer as OpenAI does: {record.error_detail}")
    if record.error is not None:
        raise HastenError(f"the server ended the answer with an error: {record.error_detail}")
    times = request_metrics(record, spread=False)
    return Answer(
        text="".join(reader.text),
        finish_reason=record.finish_reason or "stop",
        ttft_ms=times.ttft_ms,
        tpot_ms=times.tpot_ms,
        wall_ms=times.e2e_ms,
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
    )


def _check(answer: httpx.Response) -> None:
    """Raises: HastenError with the server's own words."""
    if answer.status_code == 200:
        return
    try:
        body = answer.json()
        words = error_words(body["error"]) if isinstance(body, dict) and body.get("error") else None
    except ValueError:
        words = None
    raise HastenError(f"the server answered {answer.status_code}: {words or answer.reason_phrase or answer.text[:200]}")
