"""Connections without a network: whose turn it is, and whose fault."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any

import pytest

from hasten.bench import open_files
from hasten.bench.answer import AnswerReader
from hasten.bench.client import BenchClient, ClientOptions
from hasten.bench.connection import Connection, ConnectionPool, parse_endpoint
from hasten.bench.open_files import allow_connections
from hasten.bench.record import RequestRecord
from hasten.bench.trace import TraceRequest

_ENDPOINT = parse_endpoint("http://x:1")


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None

    def write(self, data: Any) -> None: ...

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        protocol, self.protocol = self.protocol, None
        if protocol is not None:
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)


def _without_network(connect_s: float = 0.0) -> list[Connection]:
    """New connections of the running loop lead nowhere. Returns the list they are put into."""
    made: list[Connection] = []

    async def connect(factory: Callable[[], Connection], *_: Any, **__: Any) -> tuple[Wire, Connection]:
        await asyncio.sleep(connect_s)
        wire, connection = Wire(), factory()
        wire.protocol = connection
        connection.connection_made(wire)
        made.append(connection)
        return wire, connection

    asyncio.get_running_loop().create_connection = connect  # type: ignore[method-assign, assignment]
    return made


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_who_waits_longest_is_first_though_others_come_in_between() -> None:
    """A connection comes back just before somebody new asks: it belongs to the one who has been waiting."""

    async def main() -> tuple[list[int], int]:
        made = _without_network()
        pool = ConnectionPool(_ENDPOINT, max_connections=2)
        served: list[int] = []
        held = [await pool.acquire(), await pool.acquire()]

        async def ask(number: int) -> None:
            connection = await pool.acquire()
            served.append(number)
            await asyncio.sleep(0)
            pool.give_back(connection)

        waiting = [asyncio.ensure_future(ask(number)) for number in range(4)]
        await _settle()
        late = asyncio.ensure_future(ask(99))  # runs before the waiter that is woken by this:
        pool.give_back(held[0])
        await asyncio.gather(*waiting, late)
        return served, len(made)

    assert asyncio.run(main()) == ([0, 1, 2, 3, 99], 2)


def test_room_is_kept_for_who_was_called() -> None:
    """One of two connections breaks while others wait: never more than two are open, and all are served."""

    async def main() -> tuple[list[int], int]:
        made = _without_network()
        pool = ConnectionPool(_ENDPOINT, max_connections=2)
        served: list[int] = []
        held = [await pool.acquire(), await pool.acquire()]
        most = 0

        async def ask(number: int) -> None:
            nonlocal most
            connection = await pool.acquire(fresh=number == 2)
            most = max(most, sum(not one.closed for one in made))
            served.append(number)
            await asyncio.sleep(0)
            pool.give_back(connection)

        waiting = [asyncio.ensure_future(ask(number)) for number in range(3)]
        await _settle()
        waiting[1].cancel()
        held[0].abort()
        await asyncio.gather(*waiting, asyncio.ensure_future(ask(99)), return_exceptions=True)
        return served, most

    served, most = asyncio.run(main())
    assert served == [2, 0, 99]  # sent again on a fresh connection: it has waited once already
    assert most <= 2


def test_a_turn_that_is_cancelled_is_passed_on() -> None:
    async def main() -> Connection:
        made = _without_network()
        pool = ConnectionPool(_ENDPOINT, max_connections=1)
        held = await pool.acquire()
        first, second = (asyncio.ensure_future(pool.acquire()) for _ in range(2))
        await _settle()
        pool.give_back(held)
        first.cancel()  # after the hand-over, before it could run
        assert await asyncio.wait_for(second, 5) is held
        held.abort()
        third, fourth = (asyncio.ensure_future(pool.acquire()) for _ in range(2))
        await asyncio.sleep(0)
        third.cancel()
        connection = await asyncio.wait_for(fourth, 5)
        assert connection is made[-1]
        return connection

    assert not asyncio.run(main()).closed


@pytest.mark.parametrize("error", [RuntimeError("a bug"), TypeError("a bug")])
def test_a_bug_of_ours_is_not_called_the_servers_reset(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: AnswerReader, data: bytes, now_ns: int) -> None:
        raise error

    monkeypatch.setattr(AnswerReader, "feed", broken)

    async def main() -> None:
        made = _without_network()
        client = BenchClient(_ENDPOINT, ClientOptions(model="m", timeout_s=5.0))
        sending = asyncio.ensure_future(
            client.send(client.encode(TraceRequest(id="a", prompt="x"), "a"), RequestRecord(id="a"))
        )
        await _settle()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\n"
        made[0].data_received(head + b"data: {}\n")
        await sending

    with pytest.raises(type(error), match="a bug"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "given", "limit"),
    [
        (1024, 4096, 900, 900, None),
        (1024, 10_000, 4096, 4096, 4160),
        (1024, 2048, 4096, 1984, 2048),
        (1024, resource.RLIM_INFINITY, 4096, 4096, 4160),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 4096, 4096, None),
    ],
)
def test_the_limit_on_open_files(
    soft: int, hard: int, wanted: int, given: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda which, limits: asked.append(limits))
    assert allow_connections(wanted) == given
    assert asked == ([] if limit is None else [(limit, hard)])
