"""The parts of uvicorn that are no public interface and that the server builds on: a release without them must fail here."""

from __future__ import annotations

import asyncio
import inspect

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from hasten.server.http_protocol import PlainHttpProtocol, http_config


def test_what_the_protocol_overrides_and_calls() -> None:
    own = {name for name, value in vars(PlainHttpProtocol).items() if inspect.isfunction(value)}
    ours_alone = {"_refuse_head", "_feed", "_ignores_upgrade", "_head_without_upgrade"}
    assert {name for name in own - ours_alone if not hasattr(HttpToolsProtocol, name)} == set()
    for name in ("_unset_keepalive_if_required", "send_400_response"):
        assert callable(getattr(HttpToolsProtocol, name))
    assert list(inspect.signature(HttpToolsProtocol._start_asgi_task).parameters) == ["self", "cycle", "app"]
    for name in ("pause_reading", "resume_reading"):
        assert callable(getattr(FlowControl, name))
    assert callable(uvicorn.Server.capture_signals)


async def _made() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    config = http_config(app)  # type: ignore[arg-type]  # never called
    config.load()
    state = ServerState()
    protocol = PlainHttpProtocol(config, state, {}, asyncio.get_running_loop())
    for name in ("cycle", "pipeline", "flow", "transport", "headers", "parser"):
        assert hasattr(protocol, name), name
    assert state.tasks == set() == state.connections
    assert {"disconnected", "message_event", "response_complete", "response_started"} <= set(
        inspect.getsource(RequestResponseCycle.__init__).replace("self.", " ").replace(":", " ").split()
    )


def test_what_they_keep() -> None:
    asyncio.run(_made())
