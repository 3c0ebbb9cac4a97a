"""The Python API on a toy model and the reference executor; long answers on a scripted one."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten import LLM, AsyncLLM, SamplingParams
from hasten.config import EngineConfig
from hasten.engine.build import LoadedEngine, load_engine
from hasten.engine.engine import Engine
from hasten.errors import (
    BadFile,
    DoesNotFit,
    EngineStopped,
    HastenError,
    InvalidRequest,
    PromptTooLong,
    Unsupported,
    UsageError,
)
from hasten.llm_output import Output, Piece
from tests.support.scripted import ScriptedExecutor
from tests.support.toy_gguf import toy_spec, write_toy_gguf

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("llm") / "toy.gguf"
    write_toy_gguf(path, spec=toy_spec(tied_head=False), weight_format="f32", seed=6)
    return str(path)


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, executor="reference", memory="100MB") as llm:
        yield llm


def scripted(model: str, executor: ScriptedExecutor) -> LoadedEngine:
    """The toy model's tokenizer, with answers written in advance."""
    loaded = load_engine(model, EngineConfig(executor="reference", memory="100MB"))
    loaded.executor.close()
    engine = Engine(executor, loaded.config, debug=True)
    return LoadedEngine(loaded.checkpoint, loaded.tokenizer, executor, engine, loaded.config, loaded.memory)


def check(llm: LLM, output: Output, prompt: str) -> None:
    assert output.prompt_token_ids == tuple(llm.tokenizer.encode(prompt))
    assert len(output.token_ids) == 12
    assert output.text == llm.tokenizer.decode(output.token_ids)
    assert output.finish_reason == "length"
    assert output.ledger.completion_tokens == 12
    assert output.ledger.parts[0].name == "tokenize"
    assert sum(part.ms for part in output.ledger.parts) == pytest.approx(output.ledger.wall_ms)


def test_one_prompt_or_many_text_or_ids(llm: LLM) -> None:
    alone = llm.generate("hello world", GREEDY)
    check(llm, alone, "hello world")
    many = llm.generate(["hello world", "the other"], GREEDY)
    check(llm, many[1], "the other")
    by_ids = llm.generate(llm.tokenizer.encode("hello world"), GREEDY)
    lists = llm.generate([llm.tokenizer.encode("hello world")], [GREEDY])
    assert alone.token_ids == many[0].token_ids == by_ids.token_ids == lists[0].token_ids
    assert llm.generate([], GREEDY) == []


def test_stream_gives_the_same_text_in_pieces(llm: LLM) -> None:
    pieces = list(llm.stream("hello world", GREEDY))
    whole = llm.generate("hello world", GREEDY)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [piece.output is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].output is not None
    assert pieces[-1].output.token_ids == whole.token_ids
    assert len(pieces) > 2


def test_chat_renders_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    prompt = llm.tokenizer.render_chat(messages)
    answer = llm.chat(messages, GREEDY)
    assert answer.prompt_token_ids == tuple(llm.tokenizer.encode(prompt, add_special_tokens=False))
    assert llm.chat([messages, messages], GREEDY)[1].token_ids == answer.token_ids
    assert list(llm.stream_chat(messages, GREEDY))[-1].output is not None


def test_seed_repeats_an_answer_and_is_given_back(llm: LLM) -> None:
    drawn = llm.generate("hello", SamplingParams(max_tokens=16, temperature=2.0, ignore_eos=True))
    again = llm.generate("hello", SamplingParams(max_tokens=16, temperature=2.0, ignore_eos=True, seed=drawn.seed))
    other = llm.generate("hello", SamplingParams(max_tokens=16, temperature=2.0, ignore_eos=True))
    assert again.token_ids == drawn.token_ids
    assert (again.seed, other.seed != drawn.seed) == (drawn.seed, True)
    assert other.token_ids != drawn.token_ids


def test_logprobs_are_aligned_with_the_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logprobs=2, prompt_logprobs=0)
    output = llm.generate("hello world", params)
    assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)
    assert all(entry.logprob == entry.top[0].logprob and len(entry.top) == 2 for entry in output.logprobs)
    assert [entry.token_id for entry in output.prompt_logprobs] == list(output.prompt_token_ids)
    assert output.prompt_logprobs[0].logprob is None


def test_tokens_after_a_stop_string_are_neither_returned_nor_counted(model: str) -> None:
    tokenizer_text = "abc STOP and much more text"
    executor = ScriptedExecutor(vocab_size=320, max_model_len=512)
    with LLM.on(scripted(model, executor)) as llm:
        executor._in_order.append(ids := llm.tokenizer.encode(tokenizer_text) * 10)
        # what comes after the stop string is drawn only if nobody says that it is not wanted
        executor.hold_after = next(n for n in range(len(ids)) if "STOP" in llm.tokenizer.decode(ids[:n]))
        output = llm.generate("x", SamplingParams(max_tokens=200, stop=("STOP",), logprobs=0))
        assert output.text == "abc "
        assert output.finish_reason == "stop"
        count = len(output.token_ids)
        assert list(output.token_ids) == ids[:count]
        assert "STOP" in llm.tokenizer.decode(ids[:count])
        assert "STOP" not in llm.tokenizer.decode(ids[: count - 1])
        assert output.ledger.completion_tokens == count
        assert "".join(entry.text for entry in output.logprobs) == "abc "
        assert len(executor.plans) == count + 1, "the engine was told to stop"


def test_end_token_ends_the_answer_and_has_no_text(model: str) -> None:
    executor = ScriptedExecutor(vocab_size=320, max_model_len=512)
    with LLM.on(scripted(model, executor)) as llm:
        executor.eos_token_id = llm.tokenizer.eos_token_ids[0]
        executor._in_order.append(ids := llm.tokenizer.encode("fine"))
        output = llm.generate("x")
        assert (output.text, output.finish_reason) == ("fine", "stop")
        assert list(output.token_ids) == [*ids, executor.eos_token_id]


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


def test_errors_reach_the_caller_and_the_model_lives_on(llm: LLM) -> None:
    with pytest.raises(PromptTooLong, match=r"600 tokens.*512"):
        llm.generate([5] * 600, GREEDY)
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        llm.generate([5, 5000], GREEDY)
    with pytest.raises(InvalidRequest, match="empty"):
        llm.generate("", GREEDY)
    with pytest.raises(PromptTooLong):
        llm.generate(["fine", [5] * 600, "fine"], GREEDY)  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="2 prompts and 1 SamplingParams"):
        llm.generate(["a", "b"], [GREEDY])
    assert len(llm.generate("fine", GREEDY).token_ids) == 12


def test_error_of_the_engine_is_raised_with_its_words(model: str) -> None:
    executor = ScriptedExecutor(vocab_size=320, fail_requests={0: "the logits are not finite"}, max_model_len=512)
    with LLM.on(scripted(model, executor)) as llm:
        with pytest.raises(HastenError, match="not finite"):
            llm.generate("x", GREEDY)
        assert len(llm.generate("x", GREEDY).token_ids) == 12


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


def test_works_where_a_loop_is_running(llm: LLM) -> None:
    async def notebook_cell() -> Output:
        return llm.generate("hello", GREEDY)

    assert len(asyncio.run(notebook_cell()).token_ids) == 12


def test_async_api(model: str, llm: LLM) -> None:
    async def test() -> tuple[list[Output], list[Piece]]:
        async with AsyncLLM(model, executor="reference", memory="100MB") as async_llm:
            outputs = await asyncio.gather(async_llm.generate("hello", GREEDY), async_llm.generate("world", GREEDY))
            return outputs, [piece async for piece in async_llm.stream("hello", GREEDY)]

    outputs, pieces = asyncio.run(test())
    assert [output.token_ids for output in outputs] == [output.token_ids for output in llm.generate(["hello", "world"], GREEDY)]
    assert "".join(piece.text for piece in pieces) == outputs[0].text


def test_what_cannot_be_loaded_says_why(model: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="draft_model"):
        LLM(model, draft_model="smaller")
    with pytest.raises(TypeError, match="thread"):
        LLM(model, thread=2)
    with pytest.raises(UsageError, match="--max-num-seqs"):
        LLM(model, executor="reference", max_num_seqs=0)
    with pytest.raises(DoesNotFit, match="raise --memory"):
        LLM(model, executor="reference", memory="1KB")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(model).read_bytes()[:2000])
    with pytest.raises(BadFile):
        LLM(str(broken), executor="reference")
