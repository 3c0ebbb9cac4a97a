"""The process of a FakeServer. Argument: the scenario as JSON; prints its port."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from typing import Any

from tests.support.fake_server import DEFAULTS
from tests.support.stamped_socket import ConnectionClosed, StampedSocket, listen


class _State:
    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario = {**DEFAULTS, **scenario}
        self.num_requests = 0
        self.first_ns = 0
        self.log: list[dict[str, Any]] = []
        self.workers = asyncio.Semaphore(self.scenario["workers"] or 1_000_000)
        self.rng = random.Random(7)

    async def until(self, when_ns: int) -> None:
        """Sleep to a time, standing still while the server is frozen."""
        while (left_ns := when_ns - time.perf_counter_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)
        at_s = self.scenario["freeze_at_s"]
        if at_s is None:
            return
        begin_ns = self.first_ns + int(at_s * 1e9)
        end_ns = begin_ns + int(self.scenario["freeze_s"] * 1e9)
        while begin_ns <= time.perf_counter_ns() < end_ns:
            await asyncio.sleep((end_ns - time.perf_counter_ns()) / 1e9)


def _chunk_text(scenario: dict[str, Any], index: int, text: str, chat: bool) -> dict[str, Any]:
    if not chat:
        return {"index": 0, "text": text, "finish_reason": None}
    delta: dict[str, Any] = {"content": text}
    if index == 0 and scenario["reasoning"]:
        delta = {"reasoning_content": text}
    if index == 0 and scenario["tool"]:
        delta = {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": ""}}]}
    return {"index": 0, "delta": delta, "finish_reason": None}


class _Answer:
    """Writes one streamed answer and records when."""

    def __init__(self, state: _State, wire: StampedSocket, request: dict[str, Any], entry: dict[str, Any]) -> None:
        self.state, self.wire, self.request, self.entry = state, wire, request, entry
        self.scenario = state.scenario
        self.number = state.num_requests

    def _every(self, key: str) -> bool:
        return bool(self.scenario[key]) and self.number % self.scenario[key] == 0

    async def write(self, payload: bytes) -> int:
        """Returns the time just before the last piece was written."""
        for piece in _pieces(payload, self.scenario["split"]):
            now_ns = self.wire.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if self.scenario["split"]:
                await asyncio.sleep(0)
        return now_ns

    async def event(self, body: dict[str, Any] | str) -> int:
        data = body if isinstance(body, str) else json.dumps(body)
        end = self.scenario["newline"]
        return await self.write(f"data: {data}{end}{end}".encode())

    def usage(self, completion_tokens: int) -> dict[str, Any]:
        return {"prompt_tokens": self.entry["prompt_tokens"], "completion_tokens": completion_tokens}

    async def run(self) -> bool:
        """False: the connection is to be dropped."""
        scenario, entry = self.scenario, self.entry
        begin_ns = entry["received_ns"] if not scenario["workers"] else time.perf_counter_ns()
        self.wire.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await self._before_text(begin_ns)
        num_tokens = min(self.request.get("max_tokens") or 10**9, scenario["tokens"])
        sent, index = 0, 0
        when_ns = begin_ns + int((scenario["first_ms"] + self.number % 7 * scenario["stagger_ms"]) * 1e6)
        while sent < num_tokens:
            await self.state.until(when_ns + int(self.state.rng.uniform(0, scenario["jitter_ms"]) * 1e6))
            count = min(scenario["per_chunk"], num_tokens - sent)
            if self._every("reset_every") and index == scenario["reset_after"]:
                return False
            if self._every("cut_every") and sent * 2 >= num_tokens:
                self.wire.write(b"0\r\n\r\n")
                return True
            if self._every("garbage_every") and index == 1:
                await self.event("{not json")
            sent += count
            await self._text(index, sent, scenario["text"] * count)
            index += 1
            when_ns += int(scenario["gap_ms"] * 1e6)
        await self._after_text(num_tokens)
        return True

    async def _before_text(self, begin_ns: int) -> None:
        scenario = self.scenario
        if scenario["role_ms"] is not None:
            await self.state.until(begin_ns + int(scenario["role_ms"] * 1e6))
            await self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        if scenario["empty_first"]:
            await self.state.until(begin_ns + int(scenario["first_ms"] * 5e5))
            await self.event({"choices": [{"index": 0, "delta": {"content": ""}, "text": "", "finish_reason": None}]})

    async def _text(self, index: int, sent: int, text: str) -> None:
        body: dict[str, Any] = {"choices": [_chunk_text(self.scenario, index, text, self.entry["chat"])]}
        if self.scenario["usage"] == "every":
            body["usage"] = self.usage(sent)
        self.entry["chunk_ns"].append(await self.event(body))

    async def _after_text(self, num_tokens: int) -> None:
        """`done_ns`: when the client could first know that the answer is complete."""
        scenario, entry = self.scenario, self.entry
        if scenario["finish"]:
            choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
            choice.update({"delta": {}} if entry["chat"] else {"text": ""})
            entry["done_ns"] = await self.event({"choices": [choice]})
        if scenario["usage"] == "end":
            await self.event({"choices": [], "usage": self.usage(num_tokens)})
        if scenario["done"]:
            entry.setdefault("done_ns", await self.event("[DONE]"))
        if scenario["slow_close_ms"]:
            await asyncio.sleep(scenario["slow_close_ms"] / 1e3)
        entry.setdefault("done_ns", self.wire.write(b"0\r\n\r\n"))


def _pieces(payload: bytes, size: int) -> list[bytes]:
    return [payload[i : i + size] for i in range(0, len(payload), size)] if size else [payload]


async def _serve(state: _State, wire: StampedSocket) -> None:
    with suppress(ConnectionClosed):
        while True:
            head = await wire.read_until(b"\r\n\r\n")
            received = (wire.received_ns, wire.stamped_by)
            path = head.split(b" ", 2)[1].decode()
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
            headers = {name.lower(): value for name, value in fields.items()}
            body = await wire.read(int(headers.get("content-length", 0)))
            request = json.loads(body) if body else {}
            if "completions" not in path:
                _plain(wire, 200 if (answer := _side(state, path, request)) is not None else 404, answer or {})
            elif not await _complete(state, wire, path, headers, request, received):
                wire.close(reset=True)
                return
    wire.close()


async def _complete(
    state: _State,
    wire: StampedSocket,
    path: str,
    headers: dict[str, str],
    request: dict[str, Any],
    received: tuple[int, str],
) -> bool:
    received_ns, stamped_by = received
    state.num_requests += 1
    state.first_ns = state.first_ns or received_ns
    entry: dict[str, Any] = {
        "id": headers.get("x-request-id"),
        "received_ns": received_ns,
        "stamped_by": stamped_by,
        "chunk_ns": [],
        "chat": "chat" in path,
        "prompt_tokens": _prompt_tokens(request),
        "body": request,
    }
    state.log.append(entry)
    every = state.scenario["error_every"]
    if every and state.num_requests % every == 0:
        _plain(wire, state.scenario["error_status"], {"error": {"message": "planned"}})
        return True
    async with state.workers:
        return await _Answer(state, wire, request, entry).run()


def _plain(wire: StampedSocket, status: int, body: Any) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    wire.write(head.encode() + data)


def _prompt_tokens(request: dict[str, Any]) -> int:
    """A word is a token; the chat template adds three to each message and two at the end, a text prompt gets a start token."""
    if "messages" in request:
        return sum(len(m["content"].split()) + 3 for m in request["messages"]) + 2
    prompt = request["prompt"]
    return len(prompt.split()) + 1 if isinstance(prompt, str) else len(prompt)


def _tgi_token(number: int, has_text: bool) -> dict[str, Any]:
    return {"id": number, "text": "word" if has_text else "", "start": 5 * number, "stop": 5 * number + (4 if has_text else 0)}


def _side(state: _State, path: str, request: dict[str, Any]) -> Any:
    """The other endpoints; a token is a word here. None: there is no such path."""
    if path == "/log":
        return state.log
    if path == "/v1/models":
        return {"data": [{"id": "fake"}]}
    kind = state.scenario["tokenize"]
    if path == "/tokenize" and kind != "none":
        if kind == "tgi":  # always with the start token, which covers no text; no other body has `inputs`
            words = request["inputs"].split() if "inputs" in request else None
            return None if words is None else [_tgi_token(i, i > 0) for i in range(1 + len(words))]
        if kind == "llama-server":
            return {"tokens": list(range(len(request.get("content", "").split())))}
        if "messages" in request:
            count = _prompt_tokens(request)
        elif "prompt" in request:
            count = len(request["prompt"].split()) + (1 if request.get("add_special_tokens", True) else 0)
        else:
            return None
        return {"count": count, "tokens": list(range(count)), "max_model_len": 4096}
    if path == "/chat_tokenize" and kind == "tgi":
        tokens = [_tgi_token(i, i > 0) for i in range(_prompt_tokens(request))]
        return {"tokenize_response": tokens, "templated_text": ""}
    if path == "/apply-template" and kind == "llama-server":
        return {"prompt": " ".join(f"<a> <b> {m['content']} <c>" for m in request["messages"]) + " <d> <e>"}
    return None


async def _main(scenario: dict[str, Any]) -> None:
    state, loop = _State(scenario), asyncio.get_running_loop()
    serving: set[asyncio.Task[None]] = set()
    listener = listen()

    def accept() -> None:
        with suppress(BlockingIOError):
            while True:
                task = loop.create_task(_serve(state, StampedSocket(listener.accept()[0])))
                serving.add(task)
                task.add_done_callback(serving.discard)

    loop.add_reader(listener, accept)
    print(listener.getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the parent goes away


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(json.loads(sys.argv[1])))
