"""`hasten serve`: the server."""

from __future__ import annotations

from hasten.cli.options import ENGINE_DEFAULTS, SERVER_DEFAULTS, EngineOptions, ServerOptions, engine_config, server_config
from hasten.cli.terminal import ProgressLine
from hasten.weights import registry


def serve(model: str, /, *, engine: EngineOptions = ENGINE_DEFAULTS, server: ServerOptions = SERVER_DEFAULTS) -> int:
    """Start the OpenAI-compatible server.

    It prints `ready` and its address when it answers; /config then says what every `auto` became.

    Ctrl-C and SIGTERM let running answers finish, for at most --grace-s seconds; a second one ends it at once.

    Args:
        model: a GGUF file, an alias (smollm2), or the name of a file in the models folder.
    """
    engine_values, server_values = engine_config(engine), server_config(server)
    with ProgressLine(f"pulling {model}") as progress:
        found = registry.resolve(model, fetch=True, progress=progress)
    from hasten.server.run import serve as run_server

    return run_server(found, engine_values, server_values)
