"""The Python API on a toy model and the reference executor; long answers on a scripted one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten import LLM, AsyncLLM, SamplingParams
from hasten.errors import (
    BadFile,
    DoesNotFit,
    HastenError,
    InvalidRequest,
    PromptTooLong,
    Unsupported,
    UsageError,
)
from hasten.llm_output import Output, Piece
from tests.support.scripted import ScriptedExecutor
from tests.support.scripted_llm import scripted
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


def test_template_and_tokenizer_are_in_the_ledger(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    render = llm.tokenizer.render_chat

    def slow(messages: list[dict[str, str]]) -> str:
        time.sleep(0.02)
        return render(messages)

    monkeypatch.setattr(llm.tokenizer, "render_chat", slow)
    ledger = llm.chat([{"role": "user", "content": "hello"}], GREEDY).ledger
    assert ledger.parts[0].name == "tokenize"
    assert ledger.parts[0].ms >= 20
    assert ledger.ttft_ms is not None
    assert ledger.ttft_ms >= 20


def test_a_long_text_is_tokenized_beside_the_loop(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, threads = llm.tokenizer.encode, list[str]()

    def watched(text: str, *, add_special_tokens: bool = True) -> list[int]:
        threads.append(threading.current_thread().name)
        return encode(text[:10], add_special_tokens=add_special_tokens)

    monkeypatch.setattr(llm.tokenizer, "encode", watched)
    llm.generate(["a" * 2000, "a" * 2001], GREEDY)
    assert sorted(name.partition("_")[:2] for name in threads) == [("hasten-llm", ""), ("hasten-llm", "_")], "loop and pool"


def test_without_params_the_models_own_defaults_are_used(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ScriptedExecutor(vocab_size=320, max_model_len=16)
    loaded = scripted(model, executor)
    defaults = property(lambda self: {"temperature": 0.25, "top_k": 7})
    monkeypatch.setattr(type(loaded.checkpoint), "generation_defaults", defaults)
    with LLM.on(loaded) as llm:
        llm.generate("x")
        llm.generate("x", SamplingParams(top_p=0.5))
    drawn = [(s.temperature, s.top_k, s.top_p) for plan in executor.plans for s in [new.sampling for new in plan.new]]
    assert drawn == [(0.25, 7, 1.0), (1.0, 0, 0.5)]


def test_ids_outside_the_vocabulary_are_refused(llm: LLM) -> None:
    for params in (SamplingParams(logit_bias=((10**7, 5.0),)), SamplingParams(stop_token_ids=(10**7,))):
        with pytest.raises(InvalidRequest, match="10000000 is outside the vocabulary"):
            llm.generate("x", params)
    with pytest.raises(InvalidRequest, match=r"whole number \(int\), got 1.9"):
        llm.generate([[1.9, 2]], GREEDY)  # type: ignore[list-item]


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
