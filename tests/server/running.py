"""A real server on a free port in a thread: uvicorn, the routes, LocalClient and Engine over a scripted executor."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
import uvloop

from hasten.config import EngineConfig, ServerConfig
from hasten.engine.engine import Engine
from hasten.server.app import create_app
from hasten.server.http_protocol import http_config
from hasten.server.local_client import LocalClient
from hasten.server.metrics import Metrics
from hasten.server.run import bind
from hasten.server.state import ServerState
from tests.support.scripted import ScriptedExecutor, made_up_answer
from tests.support.toy_tokenizer import Toy, toy

if TYPE_CHECKING:
    import openai

MODEL = "toy"


def scripted(words: Toy, scripts: Any = (), **fields: Any) -> ScriptedExecutor:
    """An executor for the vocabulary of `words`; requests beyond the scripts get made-up answers."""
    fields.setdefault("vocab_size", words.tokenizer.vocab_size)
    return ScriptedExecutor(scripts, eos_token_id=words.eos, **fields)


def scripted_state(
    executor: ScriptedExecutor,
    words: Toy,
    *,
    engine_config: EngineConfig | None = None,
    server_config: ServerConfig | None = None,
    api_keys: tuple[str, ...] = (),
    **more: Any,
) -> ServerState:
    """State of a server that answers from scripts."""
    engine_config = engine_config or EngineConfig()
    server_config = server_config or ServerConfig()
    client = LocalClient(Engine(executor, engine_config, debug=True))
    return ServerState(
        client=client,
        tokenizer=words.tokenizer,
        info=executor.info,
        model_names=server_config.served_model_name or (MODEL, "toy-alias"),
        engine_config=engine_config,
        server_config=server_config,
        metrics=Metrics(client, MODEL, server_config.metrics_names),
        api_keys=api_keys,
        **more,
    )


class RunningServer:
    """Its address, and clients for it."""

    def __init__(self, state: ServerState, executor: ScriptedExecutor, words: Toy, port: int) -> None:
        self.state = state
        self.executor = executor
        self.words = words
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.max_loop_gap_s = 0.0
        self.http = httpx.Client(base_url=self.url, timeout=20)

    @functools.cached_property
    def openai(self) -> openai.OpenAI:
        """The stock client."""
        import openai  # a second of import that processes without it need not pay

        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=20)

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", **fields})

    def events(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """The events of a stream, framing checked: one `data:` line and a blank one each, the last is [DONE]."""
        response = self.http.post(path, json={"model": MODEL, "stream": True, **fields})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        blocks = response.text.split("\n\n")
        assert blocks.pop() == ""
        assert blocks.pop() == "data: [DONE]"
        assert all(block.startswith("data: {") and "\n" not in block for block in blocks), blocks
        return [json.loads(block[6:]) for block in blocks]

    def check_alive(self) -> None:
        """A small good request succeeds."""
        response = self.complete(max_tokens=2)
        assert response.status_code == 200, response.text

    def answer(self, prompt: str, num_tokens: int) -> str:
        """What /v1/completions must say without a script, by the oracle that knows no blocks, steps or HTTP."""
        return self.words.tokenizer.decode(self.answer_ids(prompt, num_tokens))

    def answer_ids(self, prompt: str, num_tokens: int) -> list[int]:
        return made_up_answer(self.words.tokenizer.encode(prompt), num_tokens, self.executor.info.vocab_size)

    def wait_idle(self, within_s: float = 2.0) -> None:
        """Nothing runs or waits, every block is free."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            stats = self.state.client.stats()
            if not stats.num_running and not stats.num_waiting and stats.num_free_blocks == stats.num_blocks:
                return
            time.sleep(0.005)
        raise AssertionError(f"not idle after {within_s} s: {self.state.client.stats()}")

    def raw(self, receive_buffer: int = 0) -> socket.socket:
        """A connection; `receive_buffer` bytes the kernel may take in for us while we do not read (0: its default)."""
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", self.port))
        return connection


@contextmanager
def running_server(
    executor: ScriptedExecutor | None = None, words: Toy | None = None, *, send_buffer: int = 0, **state_fields: Any
) -> Iterator[RunningServer]:
    """A server for the length of the block; afterwards the engine must be idle and its blocks free.

    `send_buffer`: bytes the kernel may hold for a client that does not read; 0 leaves it as it is.
    """
    words = words or toy()
    executor = executor or scripted(words)
    state = scripted_state(executor, words, **state_fields)
    listener = bind("127.0.0.1", 0)
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # accepted connections inherit it
    running = RunningServer(state, executor, words, listener.getsockname()[1])
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server = uvicorn.Server(http_config(create_app(state)))
    thread = threading.Thread(target=_serve, args=(server, listener, running), name="test-server", daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    try:
        yield running
        running.wait_idle()
    finally:
        running.http.close()
        if "openai" in running.__dict__:
            running.openai.close()
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"


def _serve(server: uvicorn.Server, listener: socket.socket, running: RunningServer) -> None:
    async def main() -> None:
        client = running.state.client
        assert isinstance(client, LocalClient)
        client.start()
        watcher = asyncio.create_task(_watch_loop(running))
        await server.serve(sockets=[listener])
        watcher.cancel()
        await client.close()

    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def _watch_loop(running: RunningServer) -> None:
    """Records the most processor time that this process used while the loop did not come round: a neighbour adds nothing."""
    last = time.process_time()
    while True:
        await asyncio.sleep(0.001)
        now = time.process_time()
        gap_s, last = now - last, now
        if gap_s > running.max_loop_gap_s:  # no max(): it would write back what a test has set to 0 in between
            running.max_loop_gap_s = gap_s
