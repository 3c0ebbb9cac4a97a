"""LocalClient: the engine's events in an asyncio loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hasten.config import EngineConfig
from hasten.engine.engine import Engine
from hasten.errors import EngineStopped, PromptTooLong
from hasten.request import EngineRequest, FinishReason, TokenEvent
from hasten.server.client import EngineClient
from hasten.server.local_client import LocalClient
from tests.support.scripted import ScriptedExecutor, greedy, made_up_answer


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(limited())


@asynccontextmanager
async def client_on(executor: ScriptedExecutor, **config: Any) -> AsyncIterator[LocalClient]:
    client = LocalClient(Engine(executor, EngineConfig(**config), debug=True))
    try:
        yield client
    finally:
        if executor.gate is not None:
            executor.gate.set()
        await client.close()


async def collect(client: EngineClient, prompt: range, max_tokens: int) -> list[TokenEvent]:
    request_id = await client.submit(EngineRequest(tuple(prompt), greedy(max_tokens)))
    return [event async for event in client.stream(request_id)]


def test_streams_give_every_token_in_order() -> None:
    async def test() -> None:
        async with client_on(ScriptedExecutor(num_blocks=40), max_num_seqs=4) as client:
            prompts = [range(3, 5 + 9 * i) for i in range(8)]
            streams = await asyncio.gather(*[collect(client, prompt, 20 + i) for i, prompt in enumerate(prompts)])
            for i, (events, prompt) in enumerate(zip(streams, prompts, strict=True)):
                tokens = [token_id for event in events for token_id in event.token_ids]
                assert tokens == made_up_answer(prompt, 20 + i, 1000)
                assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + [FinishReason.LENGTH]
            stats = client.stats()
            assert stats.num_finished["length"] == 8
            assert stats.num_generated_tokens == sum(20 + i for i in range(8))
            assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, stats.num_blocks)
            assert client._queues == {}

    run(test)


def test_the_loop_is_woken_once_a_step() -> None:
    async def test() -> None:
        executor = ScriptedExecutor(gate=(gate := threading.Event()))
        async with client_on(executor) as client:
            wakes = 0
            loop = asyncio.get_running_loop()
            wake = loop.call_soon_threadsafe

            def counted(callback: Callable[..., object], *args: Any, **kwargs: Any) -> asyncio.Handle:
                nonlocal wakes
                wakes += callback == client._dispatch
                return wake(callback, *args, **kwargs)

            loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
            tasks = [asyncio.ensure_future(collect(client, range(3, 4 + i), 10)) for i in range(8)]
            await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(*tasks)
            assert wakes == len(executor.plans) <= 12

    run(test)


def test_refusals_come_from_submit() -> None:
    async def test() -> None:
        async with client_on(ScriptedExecutor(max_model_len=64)) as client:
            with pytest.raises(PromptTooLong, match=r"65.*64"):
                await collect(client, range(3, 68), 5)
            assert await client.drain(1.0) is True
            with pytest.raises(EngineStopped):
                await collect(client, range(3, 6), 5)

    run(test)


def test_cancel_and_abandoned_streams() -> None:
    async def test() -> None:
        async with client_on(ScriptedExecutor(step_s=0.001)) as client:
            request_id = await client.submit(EngineRequest((3,), greedy(4000)))
            events: list[TokenEvent] = []
            async for event in client.stream(request_id):
                events.append(event)
                if len(events) == 3:
                    client.cancel(request_id)
            assert events[-1].finish_reason is FinishReason.CANCELLED
            client.cancel(request_id)
            client.cancel(99)
            with pytest.raises(KeyError):
                client.stream(request_id)
            # leaving the iterator does not cancel: the answer is computed to its end, and nobody keeps it
            left = await client.submit(EngineRequest((3,), greedy(50)))
            stream = client.stream(left)
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            assert await client.drain(20.0) is True
            assert client.stats().num_finished == {"stop": 0, "length": 1, "cancelled": 1, "error": 0}
            assert client._queues == {}

    run(test)


def test_drain_cancels_what_takes_too_long() -> None:
    async def test() -> None:
        async with client_on(ScriptedExecutor(step_s=0.002)) as client:
            task = asyncio.ensure_future(collect(client, range(3, 5), 4000))
            await asyncio.sleep(0.02)
            assert await client.drain(0.05) is False
            assert (await task)[-1].finish_reason is FinishReason.CANCELLED

    run(test)


def test_a_second_loop_is_refused_and_a_closed_one_does_not_hurt(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(ScriptedExecutor(step_s=0.001), EngineConfig())
    client = LocalClient(engine)

    async def leave_it_running() -> None:
        await client.submit(EngineRequest((3,), greedy(200)))

    asyncio.run(leave_it_running())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(leave_it_running())
    assert engine.drain(20.0) is True
    engine.stop()
    assert "the listener failed" not in caplog.text
