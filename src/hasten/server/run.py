"""The server as a process: bind, load, serve, drain, end. Signals are ours, not uvicorn's.

The first SIGTERM or Ctrl-C drains: new requests get 503, running ones finish within the grace time or end with an error
event. The second one ends the process there and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NoReturn

import uvicorn
import uvloop

from hasten import __version__
from hasten.config import EngineConfig, ServerConfig, parse_size
from hasten.engine.build import LoadedEngine, load_engine
from hasten.engine.memory import size
from hasten.errors import TemplateError, UsageError
from hasten.server.app import create_app
from hasten.server.auth import configured_keys
from hasten.server.http_protocol import BACKLOG, http_config
from hasten.server.local_client import LocalClient
from hasten.server.metrics import Metrics
from hasten.server.state import ServerState
from hasten.tokenizer.chat_template import check_template
from hasten.weights.registry import ResolvedModel

EXIT_FAILED = 1
_EXIT_ON_SIGNAL = {signal.SIGTERM: 0, signal.SIGINT: 130}
FLUSH_S = 0.4  # for answers that are finished but not yet sent when the drain is over


def serve(model: ResolvedModel, engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serve `model` until a signal ends it. Returns the exit code: 0, 1 (port), 130 (Ctrl-C).

    Raises: UsageError (configuration), ModelError (the file), DoesNotFit (memory).
    """
    _check_config(server_config)
    template = _read_template(server_config.chat_template)
    try:
        listener = bind(server_config.host, server_config.port)
    except OSError as error:
        print(f"hasten: {_bind_message(error, server_config)}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    with listener:
        # 80 ms of imports that the first chat would pay for; they fit beside the native work of loading
        threading.Thread(target=importlib.import_module, args=("hasten.tokenizer.template_sandbox",), daemon=True).start()
        loaded = load_engine(model.path, engine_config)
        try:
            client = LocalClient(loaded.engine)
            names = server_config.served_model_name or (model.name, *model.aliases)
            state = make_state(client, loaded, tuple(dict.fromkeys(names)), server_config, template)
            for line in start_lines(state, loaded):
                print(line, flush=True)
            return run(state, client, listener)
        finally:
            loaded.close()


def make_state(
    client: LocalClient,
    loaded: LoadedEngine,
    model_names: tuple[str, ...],
    server_config: ServerConfig,
    chat_template: str | None,
) -> ServerState:
    """The routes' state for a loaded engine."""
    return ServerState(
        client=client,
        tokenizer=loaded.tokenizer,
        info=loaded.executor.info,
        model_names=model_names,
        engine_config=loaded.config,
        server_config=server_config,
        metrics=Metrics(client, model_names[0], server_config.metrics_names),
        reasons=loaded.reasons,
        sampling_defaults=loaded.checkpoint.generation_defaults,
        chat_template=chat_template,
        api_keys=configured_keys(server_config.api_key),
    )


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises OSError. Done before loading, so that a taken port fails at once."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # listening from here on: a second server on this port fails now, and early clients wait instead of failing
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """http://host:port of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def start_lines(state: ServerState, loaded: LoadedEngine) -> Sequence[str]:
    """What a person wants to know at start, except the address: `run` prints that when it answers."""
    how = ", ".join(f"{name} {value}" for name, value in state.info.description.items())
    return (
        f"hasten {__version__}",
        f"model    {', '.join(state.model_names)}: {loaded.checkpoint.path}",
        f"runs on  {how}",
        f"numerics {state.info.numerics_profile}",
        f"memory   {loaded.memory}",
        f"context  {state.limits.max_tokens_total} tokens",
        *(f"{name:<14} {_shown(loaded.config, name)}: {reason}" for name, reason in loaded.reasons.items()),
        *(f"note     {note}" for note in loaded.memory.notes),
    )


def _shown(config: EngineConfig, name: str) -> str:
    if name == "memory":
        return size(parse_size(config.memory or "0"))
    value = getattr(config, name)
    return "auto" if value is None else str(value)


def run(state: ServerState, client: LocalClient, listener: socket.socket) -> int:
    """Serve on `listener` until a signal; returns the exit code. Takes over SIGTERM and SIGINT meanwhile."""
    config = http_config(create_app(state), access_log=state.server_config.access_log)
    _set_up_logging(state.server_config.access_log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Process(state, client, config).main(listener))


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Process:
    """The server while it runs, and what signals do to it."""

    def __init__(self, state: ServerState, client: LocalClient, config: uvicorn.Config) -> None:
        self.state = state
        self.client = client
        self.server = _Server(config)
        self.exit_code = 0
        self._draining: asyncio.Task[None] | None = None

    async def main(self, listener: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        for number in _EXIT_ON_SIGNAL:
            loop.add_signal_handler(number, self._on_signal, number)
        self.client.start()
        # what lives now lives for good: the collector need not look at it again
        gc.collect()
        gc.freeze()
        serving = asyncio.create_task(self.server.serve(sockets=[listener]))
        while not self.server.started and not serving.done():
            await asyncio.sleep(0.001)
        if not serving.done():
            print(f"ready    {url_of(listener)}", flush=True)
        await serving
        return self.exit_code

    def _on_signal(self, number: signal.Signals) -> None:
        if self.state.is_draining:
            _end_at_once(128 + number)
        self.state.is_draining = True
        self.exit_code = _EXIT_ON_SIGNAL[number]
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        stats, grace_s = self.client.stats(), self.state.server_config.grace_s
        if stats.num_open:
            text = f"hasten: finishing {stats.num_open} answers, at most {grace_s:g} s; once more to stop at once"
            print(text, file=sys.stderr, flush=True)
        await self.client.drain(grace_s)
        deadline = asyncio.get_running_loop().time() + FLUSH_S
        while self.server.server_state.tasks and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self.server.should_exit = True


def _end_at_once(code: int) -> NoReturn:
    """No thread, stream or buffer can hold this up; there are no child processes and no files half written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _set_up_logging(access_log: bool) -> None:
    # an exception in a route is logged by hasten.server; uvicorn would add a second traceback, and one per cut stream
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    if access_log:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger = logging.getLogger("uvicorn.access")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _check_config(config: ServerConfig) -> None:
    try:
        parse_size(config.max_body)
    except ValueError as error:
        raise UsageError(f"--max-body: {error}") from None
    if not 0 <= config.port <= 65535:
        raise UsageError(f"--port is {config.port}, it must be in [0, 65535]")
    if not 0 <= config.grace_s < float("inf"):
        raise UsageError(f"--grace-s is {config.grace_s}, it must be a number of seconds")
    for name in ("served_model_name", "api_key", "cors"):
        if not all(value.strip() for value in getattr(config, name)):
            raise UsageError(
                f"--{name.replace('_', '-')} (or an entry of HASTEN_{name.upper()}) is empty: give it a value, or leave it out"
            )


def _read_template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        template = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--chat-template: cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--chat-template: {path} is not UTF-8 at byte {error.start}") from None
    try:
        check_template(template)
    except TemplateError as error:
        raise UsageError(f"--chat-template: {path}: {error}") from None
    return template


def _bind_message(error: OSError, config: ServerConfig) -> str:
    where = f"port {config.port} on {config.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use: stop what listens there, or choose another with --port (0 takes a free one)"
    return f"cannot listen on {where}: {error.strerror or error}"
