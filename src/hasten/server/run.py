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
import signal
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path

import uvicorn
import uvloop

from hasten import __version__, exit_codes
from hasten.config import EngineConfig, ServerConfig, parse_size
from hasten.engine.build import LoadedEngine, load_engine, resolve_config
from hasten.engine.memory import budget, size
from hasten.server.app import create_app
from hasten.server.auth import configured_keys
from hasten.server.http_protocol import BACKLOG, PlainHttpProtocol, http_config
from hasten.server.local_client import LocalClient
from hasten.server.metrics import Metrics
from hasten.server.quoting import cut
from hasten.server.settings import check_config, printable_names, read_template
from hasten.server.signals import end_at_once, sigterm_ends_loading
from hasten.server.state import ServerState
from hasten.weights.registry import ResolvedModel

_EXIT_ON_SIGNAL = {signal.SIGTERM: exit_codes.DONE, signal.SIGINT: exit_codes.INTERRUPTED}
FLUSH_S = 0.4  # when nothing is left to compute: for last events, also beyond the grace time, and for refusals


def serve(model: ResolvedModel, engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Serve `model` until a signal ends it. Returns the exit code: 0, 1 (port), 130 (Ctrl-C).

    SIGTERM while the model loads ends the process.

    Raises: UsageError (configuration), ModelError (the file), DoesNotFit (memory).
    """
    check_config(server_config)
    resolve_config(engine_config)
    budget(engine_config.memory, sys.maxsize)
    template = read_template(server_config.chat_template)
    names = printable_names(server_config.served_model_name or (model.name, *model.aliases))
    try:
        listener = bind(server_config.host, server_config.port)
    except (OSError, UnicodeError) as error:
        print(f"hasten: {_bind_message(error, server_config)}", file=sys.stderr, flush=True)
        return exit_codes.FAILED
    with listener, sigterm_ends_loading():
        print(f"hasten {__version__}\nloading  {model.path} ({_file_size(model.path)})", flush=True)
        # 80 ms of imports that the first chat would pay for; they fit beside the native work of loading
        threading.Thread(target=importlib.import_module, args=("hasten.tokenizer.template_sandbox",), daemon=True).start()
        loaded = load_engine(model.path, engine_config)
        try:
            client = LocalClient(loaded.engine)
            state = make_state(client, loaded, names, server_config, template)
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
    """What a person wants to know of a loaded model; `run` prints the address when it answers."""
    how = ", ".join(f"{name} {value}" for name, value in state.info.description.items())
    return (
        f"model    {', '.join(state.model_names)}",
        f"runs on  {how}",
        f"numerics {state.info.numerics_profile}",
        f"memory   {loaded.memory}",
        f"context  {state.limits.max_tokens_total} tokens",
        *(f"{name:<14} {_shown(loaded.config, name)}: {reason}" for name, reason in loaded.reasons.items()),
        *(f"note     {note}" for note in loaded.memory.notes),
    )


def _file_size(path: Path) -> str:
    try:
        return size(path.stat().st_size)
    except OSError:
        return "not there"  # loading says it better


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
            if signal.getsignal(number) is not signal.SIG_IGN:  # as whoever started us wants it: `sh -c 'hasten serve … &'`
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
            end_at_once(128 + number)
        self.state.is_draining = True
        self.exit_code = _EXIT_ON_SIGNAL[number]
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        loop, grace_s = asyncio.get_running_loop(), self.state.server_config.grace_s
        deadline = loop.time() + grace_s + FLUSH_S
        num_open = self.client.stats().num_open
        if num_open:
            text = f"hasten: finishing {num_open} answers, at most {grace_s:g} s; once more to stop at once"
            print(text, file=sys.stderr, flush=True)
        await self.client.drain(grace_s)
        # The answers are written. Who reads slowly has the rest of the time to take them; who has sent half a request, none.
        soon, state = loop.time() + FLUSH_S, self.server.server_state
        while (loop.time() < soon and state.tasks) or (loop.time() < deadline and any(map(_is_sending, state.connections))):
            await asyncio.sleep(0.01)
        self.server.should_exit = True


def _is_sending(connection: object) -> bool:
    return isinstance(connection, PlainHttpProtocol) and connection.is_sending


def _set_up_logging(access_log: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger("hasten").handlers = [handler]
    # an exception in a route is logged by hasten.server; uvicorn would add a second traceback, and one per cut stream
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    if access_log:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger = logging.getLogger("uvicorn.access")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _bind_message(error: OSError | UnicodeError, config: ServerConfig) -> str:
    if isinstance(error, UnicodeError):
        return f"--host is {cut(config.host)!r}: not a name or address ({error})"
    where = f"port {config.port} on {config.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use: stop what listens there, or choose another with --port (0 takes a free one)"
    return f"cannot listen on {where}: {error.strerror or error}"
