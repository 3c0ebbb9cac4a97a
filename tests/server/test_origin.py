"""Which web pages may use a server without keys: a browser carries requests to 127.0.0.1 for any page that it shows."""

from __future__ import annotations

from typing import Any

import pytest

from hasten.config import ServerConfig
from tests.server.running import MODEL, RunningServer, running_server

BODY = {"model": MODEL, "prompt": "Hi", "max_tokens": 2}


def status(server: RunningServer, *, host: str | None = None, origin: str | None = None, **more: Any) -> int:
    headers = {name: value for name, value in (("Host", host), ("Origin", origin)) if value is not None}
    return server.http.post("/v1/completions", json=BODY, headers=headers, **more).status_code


def test_programs_that_are_no_browser_are_not_asked(server: RunningServer) -> None:
    assert status(server) == 200
    assert status(server, host="any.name.test:1") == 200


def test_the_servers_own_page(server: RunningServer) -> None:
    for name in (f"127.0.0.1:{server.port}", "localhost:8000", "localhost", "[::1]:8000", "192.168.1.7:80"):
        assert status(server, host=name, origin=f"http://{name}") == 200, name
    assert status(server, host="LocalHost:8000", origin="http://localhost:8000") == 200


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (None, "https://evil.test"),
        (None, "null"),  # a sandboxed frame, a local file
        ("127.0.0.1:8000", "http://127.0.0.1:9000"),
        ("evil.test:8000", "http://evil.test:8000"),  # a name that was made to mean 127.0.0.1
        ("localhost.evil.test", "http://localhost.evil.test"),
        ("[", "http://["),
        (None, "chrome-extension://abc"),
        (None, ""),
    ],
)
def test_other_pages_are_refused(server: RunningServer, host: str | None, origin: str) -> None:
    before = server.state.client.stats().num_steps
    assert status(server, host=host, origin=origin) == 403
    answer = server.http.post("/v1/completions", json=BODY, headers={"Origin": "https://evil.test"})
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert "--cors" in answer.json()["error"]["message"]
    assert "access-control-allow-origin" not in answer.headers
    assert server.state.client.stats().num_steps == before


def test_pages_named_by_cors_may() -> None:
    with running_server(server_config=ServerConfig(cors=("https://app.test",))) as server:
        assert status(server, origin="https://app.test") == 200
        assert status(server, origin="https://evil.test") == 403
    with running_server(server_config=ServerConfig(cors=("*",))) as server:
        assert status(server, origin="https://any.test") == 200


def test_a_key_is_enough() -> None:
    """Which page it is does not matter: only who knows the key gets through."""
    with running_server(api_keys=("k",)) as server:
        assert status(server, origin="https://evil.test") == 401
        body = {"json": BODY, "headers": {"Origin": "https://evil.test", "Authorization": "Bearer k"}}
        assert server.http.post("/v1/completions", **body).status_code == 200


def test_a_server_for_the_network_has_a_name_there() -> None:
    with running_server(server_config=ServerConfig(host="0.0.0.0")) as server:
        assert status(server, host="box.lan:8000", origin="http://box.lan:8000") == 200
        assert status(server, host="box.lan:8000", origin="https://evil.test") == 403
