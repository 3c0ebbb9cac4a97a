"""The Python API when a caller leaves, interrupts, closes or forgets it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hasten import LLM, SamplingParams
from hasten.errors import EngineStopped, HastenError
from hasten.llm_output import Output
from tests.support.scripted import ScriptedExecutor
from tests.support.scripted_llm import scripted
from tests.support.toy_gguf import toy_spec, write_toy_gguf

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("llm") / "toy.gguf"
    write_toy_gguf(path, spec=toy_spec(tied_head=False), weight_format="f32", seed=6)
    return str(path)


def test_leaving_a_stream_cancels_the_request(model: str) -> None:
    executor = ScriptedExecutor(vocab_size=320, hold_after=1, max_model_len=512)
    with LLM.on(scripted(model, executor)) as llm:
        executor._in_order += [llm.tokenizer.encode("abc")] * 2
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        stream = llm.stream("x", params)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        for _ in llm.stream("x", params):
            break
        assert llm.loaded.engine.drain(5.0) is True
        assert llm.loaded.engine.snapshot().num_finished["cancelled"] == 2


@pytest.mark.parametrize("streaming", [False, True])
def test_ctrl_c_cancels_the_request_and_the_model_lives_on(model: str, streaming: bool) -> None:
    executor = ScriptedExecutor(vocab_size=320, step_s=0.01, max_model_len=512)
    with LLM.on(scripted(model, executor)) as llm:
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            while len(executor.plans) < 3:
                time.sleep(0.002)
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        with pytest.raises(KeyboardInterrupt):
            list(llm.stream("x", params)) if streaming else llm.generate("x", params)
        thread.join()
        assert len(llm.generate("x", GREEDY).token_ids) == 12
        assert llm.loaded.engine.snapshot().num_finished["cancelled"] == 1


def test_close_ends_threads_and_refuses_what_comes_after(model: str) -> None:
    before = set(threading.enumerate())
    executor = ScriptedExecutor(vocab_size=320, gate=threading.Event(), max_model_len=512)
    llm = LLM.on(scripted(model, executor))
    errors: list[Exception] = []

    def ask() -> None:
        try:
            llm.generate("x", GREEDY)
        except HastenError as error:
            errors.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    while not executor.plans:
        asker.join(0.001)
    llm.close()
    llm.close()
    asker.join(10)
    assert [type(error) for error in errors] == [EngineStopped]
    with pytest.raises(EngineStopped, match="closed"):
        llm.generate("x", GREEDY)
    assert executor.closed
    assert set(threading.enumerate()) - before == set()


def test_works_where_a_loop_is_running(model: str) -> None:
    with LLM.on(scripted(model, ScriptedExecutor(vocab_size=320, max_model_len=512))) as llm:

        async def notebook_cell() -> Output:
            return llm.generate("hello", GREEDY)

        assert len(asyncio.run(notebook_cell()).token_ids) == 12


def test_a_stream_may_be_left_after_the_model_was_closed(model: str) -> None:
    executor = ScriptedExecutor(vocab_size=320, hold_after=1, max_model_len=512)
    llm = LLM.on(scripted(model, executor))
    executor._in_order.append(llm.tokenizer.encode("abc"))
    stream = llm.stream("x", GREEDY)
    next(stream)
    llm.close()
    stream.close()  # type: ignore[attr-defined]
    with pytest.raises(EngineStopped, match="closed"):
        next(llm.stream("x", GREEDY))


@pytest.mark.parametrize("where", ["loop", "pool", "engine"])
def test_a_model_that_is_collected_on_its_own_thread_ends_without_waiting_for_itself(model: str, where: str) -> None:
    executor = ScriptedExecutor(vocab_size=320, max_model_len=512)
    before = set(threading.enumerate())
    llm = LLM.on(scripted(model, executor))
    llm.generate("x", GREEDY)
    if where == "loop":
        llm._loop.call_soon_threadsafe(llm._close)
    elif where == "pool":
        llm._loop.call_soon_threadsafe(lambda: llm._loop.run_in_executor(None, llm._close))
    else:
        check, closes = llm.loaded.engine._batch.check, iter([llm._close])

        def close_and_check() -> None:
            next(closes, lambda: None)()
            check()

        llm.loaded.engine._batch.check = close_and_check  # type: ignore[method-assign]
        executor.hold_after = 1  # the answer ends by the close alone
        with pytest.raises(EngineStopped):
            llm.generate("x", SamplingParams(max_tokens=400, ignore_eos=True))
    give_up = time.monotonic() + 20
    while set(threading.enumerate()) - before:
        assert time.monotonic() < give_up, f"still there: {set(threading.enumerate()) - before}"
        time.sleep(0.002)
    assert executor.closed


@pytest.mark.parametrize(
    "use",
    [
        "",
        "; llm.generate('a', SamplingParams(max_tokens=2))",
        "; next(llm.stream('a', SamplingParams(max_tokens=200, ignore_eos=True)))",
        "; kept = llm.stream('a', SamplingParams(max_tokens=200, ignore_eos=True)); next(kept)",
        "; raise SystemExit(0)",
    ],
)
def test_a_model_that_nobody_closed_ends_with_the_interpreter(model: str, use: str) -> None:
    code = f"from hasten import LLM, SamplingParams; llm = LLM({model!r}){use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_async_model_that_nobody_closed_ends_with_the_interpreter(model: str) -> None:
    code = (
        "import asyncio\n"
        "from hasten import AsyncLLM, SamplingParams\n"
        "async def main():\n"
        f"    llm = AsyncLLM({model!r})\n"
        "    await llm.generate('a', SamplingParams(max_tokens=2))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
