"""The engine's loop on a scripted executor, which checks every plan: answers, ends, batching."""

from __future__ import annotations

import threading

import pytest

from hasten.request import FinishReason
from tests.support.engine_run import EngineRun
from tests.support.scripted import ScriptedExecutor, greedy, made_up_answer


def test_one_request_gets_the_answer_of_the_oracle() -> None:
    prompt = range(3, 40)
    with EngineRun(ScriptedExecutor()) as run:
        request = run.submit(prompt, 25)
        assert run.tokens(request) == made_up_answer(prompt, 25, 1000)
        assert run.wait(request).finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("chunk", [1, 7, 64, 0, None])
def test_answers_do_not_depend_on_chunks_or_neighbours(chunk: int | None) -> None:
    prompts = [range(5, 5 + n) for n in (1, 2, 31, 32, 33, 100, 300)]
    with EngineRun(ScriptedExecutor(), chunk=chunk, max_num_seqs=4) as run:
        requests = [run.submit(prompt, 10 + i) for i, prompt in enumerate(prompts)]
        for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
            assert run.tokens(request) == made_up_answer(prompt, 10 + i, 1000)


def test_chunks_are_512_when_nothing_decodes() -> None:
    executor = ScriptedExecutor(gate=(gate := threading.Event()), max_num_batched_tokens=2048)
    with EngineRun(executor, max_num_batched_tokens=2048) as run:
        first = run.submit(range(3, 603), 30)
        run.wait_until(lambda: executor.plans, "the first step")
        second = run.submit(range(3, 203), 1)
        gate.set()
        run.wait(first), run.wait(second)
    sizes = [{chunk.request_id: chunk.num_tokens for chunk in plan.chunks} for plan in executor.plans]
    assert sizes[:4] == [{1: 512}, {1: 88, 2: 200}, {1: 1}, {1: 1}], "nothing decodes: the newcomer gets the rest of the 512"


def test_prompt_joins_running_decodes_in_the_same_step_64_tokens_at_a_time() -> None:
    executor = ScriptedExecutor(gate=(gate := threading.Event()))
    with EngineRun(executor) as run:
        first = run.submit(range(3, 13), 50)
        run.wait_until(lambda: executor.plans, "the first step")
        second = run.submit(range(3, 203), 5)
        gate.set()
        run.wait(first), run.wait(second)
    sizes = [{chunk.request_id: chunk.num_tokens for chunk in plan.chunks} for plan in executor.plans]
    assert sizes[1:6] == [{1: 1, 2: 64}, {1: 1, 2: 64}, {1: 1, 2: 64}, {1: 1, 2: 8}, {1: 1, 2: 1}]


def test_articles_example_short_requests_leave_and_a_newcomer_takes_the_place_at_once() -> None:
    """Three requests of 100 tokens and one of 1,000 start together, four places; two more wait."""
    with EngineRun(ScriptedExecutor(num_blocks=512), max_num_seqs=4, start=False) as run:
        requests = [run.submit(range(3, 13), num_tokens) for num_tokens in (100, 100, 100, 1000, 50, 50)]
        run.start()
        ends = [run.wait(request) for request in requests]
    steps = [dict(end.ledger.steps) for end in ends if end.ledger]
    assert [step["first_scheduled"] for step in steps[:4]] == [1] * 4
    assert [step["last_token"] for step in steps[:4]] == [100, 100, 100, 1000]
    assert [step["first_scheduled"] for step in steps[4:]] == [101, 101]
    assert [step["last_token"] for step in steps[4:]] == [150, 150]
    # and the short ones are told so long before the long one is done
    told = {event.request_id: i for i, call in enumerate(run.calls) for event in call if event.finish_reason}
    assert max(told[request] for request in requests[:3]) < told[requests[3]] - 800


def test_articles_example_static_batching_makes_them_wait() -> None:
    with EngineRun(ScriptedExecutor(num_blocks=512), max_num_seqs=4, batching="static", start=False) as run:
        requests = [run.submit(range(3, 13), num_tokens) for num_tokens in (100, 100, 100, 1000, 50, 50)]
        run.start()
        ends = [run.wait(request) for request in requests]
        for request, num_tokens in zip(requests, (100, 100, 100, 1000, 50, 50), strict=True):
            assert run.tokens(request) == made_up_answer(range(3, 13), num_tokens, 1000)
    steps = [dict(end.ledger.steps) for end in ends if end.ledger]
    assert [step["last_token"] for step in steps[:4]] == [100, 100, 100, 1000]
    assert [step["first_scheduled"] for step in steps[4:]] == [1001, 1001]
    told = {event.request_id: i for i, call in enumerate(run.calls) for event in call if event.finish_reason}
    assert len({told[request] for request in requests[:4]}) == 1, "the whole batch ends together"
    held = [part.name for part in ends[0].ledger.parts] if ends[0].ledger else []
    assert held == ["queue", "prefill", "decode", "held"]


def test_static_batch_that_is_cancelled_lets_the_held_answer_go_and_the_next_begin() -> None:
    with EngineRun(ScriptedExecutor(step_s=0.001), max_num_seqs=2, batching="static", start=False) as run:
        short, long, late = run.submit([3], 2), run.submit([4], 3000), run.submit([5], 2)
        run.start()
        run.wait_for_tokens(short, 2)
        run.wait_for_tokens(long, 5)
        assert run.events(short)[-1].finish_reason is None, "held until the batch is over"
        run.engine.cancel(long)
        assert run.wait(long).finish_reason is FinishReason.CANCELLED
        assert run.wait(short).finish_reason is FinishReason.LENGTH
        assert run.wait(late).finish_reason is FinishReason.LENGTH


def test_held_answer_that_is_cancelled_is_let_go_as_it_is() -> None:
    with EngineRun(ScriptedExecutor(step_s=0.001), max_num_seqs=2, batching="static", start=False) as run:
        short, long = run.submit([3], 2), run.submit([4], 3000)
        run.start()
        run.wait_for_tokens(short, 2)
        run.wait_for_tokens(long, 5)
        assert run.events(short)[-1].finish_reason is None
        run.engine.cancel(short)  # it has all of its answer: no need to hold it any longer
        assert run.wait(short).finish_reason is FinishReason.LENGTH
        run.engine.cancel(long)


def test_held_answer_is_let_go_when_the_rest_of_its_batch_is_cancelled_between_two_steps() -> None:
    with EngineRun(ScriptedExecutor(), max_num_seqs=2, batching="static", start=False) as run:
        short, long = run.submit([3], 2), run.submit([4], 3000)
        check = run.engine._batch.check

        def cancel_and_check() -> None:  # called on the engine's thread when a step has been taken in
            if run.engine.snapshot().num_steps == 5:
                run.engine.cancel(long)
            check()

        run.engine._batch.check = cancel_and_check  # type: ignore[method-assign]
        run.start()
        assert run.wait(short).finish_reason is FinishReason.LENGTH
        assert run.wait(long).finish_reason is FinishReason.CANCELLED
        assert run.step_ids(long) == [1, 2, 3, 4, 5]
        assert run.engine.snapshot().failed is None


def test_a_stop_token_is_named_with_the_token_though_the_answer_is_held() -> None:
    with EngineRun(ScriptedExecutor([[10, 11, 12, 13]]), max_num_seqs=2, batching="static", start=False) as run:
        stopped, long = run.submit([3], greedy(9, stop_token_ids=(12,))), run.submit([4], 20)
        run.start()
        run.wait(stopped), run.wait(long)
        said = [(event.token_ids, event.stop_token_id, event.finish_reason) for event in run.events(stopped)]
    assert said == [((10,), None, None), ((11,), None, None), ((12,), 12, None), ((), 12, FinishReason.STOP)]


def test_events_of_a_step_come_in_one_call() -> None:
    with EngineRun(executor := ScriptedExecutor(), start=False) as run:
        requests = [run.submit([3 + i], 20) for i in range(8)]
        run.start()
        for request in requests:
            run.wait(request)
    num_steps = len(executor.plans)
    assert len(run.calls) == num_steps
    assert max(len(call) for call in run.calls) == 8


def test_prompt_tokens_are_computed_once_and_counted_once() -> None:
    with EngineRun(executor := ScriptedExecutor(), chunk=16) as run:
        run.wait(run.submit(range(3, 103), 5))
        snapshot = run.engine.snapshot()
    assert sum(plan.num_tokens for plan in executor.plans) == 100 + 4
    assert (snapshot.num_prompt_tokens, snapshot.num_generated_tokens) == (100, 5)
    assert snapshot.num_steps == len(executor.plans)


def test_fr_048_every_end_token_stops_and_ignore_eos_runs_on() -> None:
    script = [10, 11, 12, 13, 14, 7, 15, 16, 17, 18]
    with EngineRun(ScriptedExecutor([script] * 5)) as run:
        either = run.submit([3], 10, eos_token_ids=(2, 7))
        assert run.tokens(either) == script[:6]
        assert (run.wait(either).finish_reason, run.wait(either).stop_token_id) == (FinishReason.STOP, 7)
        ignoring = run.submit([3], greedy(10, ignore_eos=True), eos_token_ids=(2, 7))
        assert run.tokens(ignoring) == script
        assert (run.wait(ignoring).finish_reason, run.wait(ignoring).stop_token_id) == (FinishReason.LENGTH, None)
        own = run.submit([3], greedy(10, ignore_eos=True, stop_token_ids=(12,)), eos_token_ids=(2, 7))
        assert run.tokens(own) == script[:3]
        assert (run.wait(own).finish_reason, run.wait(own).stop_token_id) == (FinishReason.STOP, 12)
        last = run.submit([3], 6, eos_token_ids=(7,))
        assert run.wait(last).finish_reason is FinishReason.STOP, "an end token as the last allowed one is a stop"
        short = run.submit([3], 5, eos_token_ids=(7,))
        assert run.wait(short).finish_reason is FinishReason.LENGTH


def test_max_tokens_0_needs_no_step() -> None:
    with EngineRun(executor := ScriptedExecutor()) as run:
        request = run.submit([3, 4, 5], 0)
        assert run.wait(request).finish_reason is FinishReason.LENGTH
        assert run.tokens(request) == []
    assert executor.plans == []


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_prompt_logprobs_come_once_and_whole(max_tokens: int, chunk: int) -> None:
    prompt = (9, 8, 7, 6, 5, 4)
    with EngineRun(ScriptedExecutor(), chunk=chunk) as run:
        request = run.submit(prompt, greedy(max_tokens, prompt_logprobs=1, logprobs=0))
        assert run.tokens(request) == made_up_answer(prompt, max_tokens, 1000)
        events = run.events(request)
    carrying = [event for event in events if event.prompt_logprobs]
    assert len(carrying) == 1
    assert [entry.token_id for entry in carrying[0].prompt_logprobs] == list(prompt)
    assert carrying[0].prompt_logprobs[0].logprob is None
    assert all(entry.logprob == -(entry.token_id + 1) / 1000 for entry in carrying[0].prompt_logprobs[1:])
    logprobs = [entry for event in events for entry in event.logprobs]
    assert [entry.token_id for entry in logprobs] == run.tokens(request)
    assert events[-1].finish_reason is FinishReason.LENGTH


def test_prompt_logprobs_survive_preemption_in_the_middle_of_the_prompt() -> None:
    first, second = tuple(range(3, 7)), tuple(range(20, 36))
    with EngineRun(ScriptedExecutor(num_blocks=6, block_size=4), chunk=1, start=False) as run:
        growing, request = run.submit(first, 12), run.submit(second, greedy(4, prompt_logprobs=0))
        run.start()
        run.wait(growing)
        assert run.tokens(request) == made_up_answer(second, 4, 1000)
        assert [entry.token_id for event in run.events(request) for entry in event.prompt_logprobs] == list(second)
        ledger = run.wait(request).ledger
    assert ledger is not None
    assert [part.name for part in ledger.parts] == ["queue", "prefill", "preempted", "prefill", "decode"]


def test_prompt_logprobs_survive_preemption() -> None:
    prompts = [tuple(range(3, 19)), tuple(range(20, 36))]
    executor = ScriptedExecutor(num_blocks=9, block_size=4)
    with EngineRun(executor, chunk=3, start=False) as run:
        requests = [run.submit(prompt, greedy(16, prompt_logprobs=0)) for prompt in prompts]
        run.start()
        for request, prompt in zip(requests, prompts, strict=True):
            assert run.tokens(request) == made_up_answer(prompt, 16, 1000)
            entries = [entry.token_id for event in run.events(request) for entry in event.prompt_logprobs]
            assert entries == list(prompt)
        assert run.engine.snapshot().num_preemptions > 0


def test_fr_015_preempted_requests_give_the_same_tokens() -> None:
    """Four requests of 200 + 300 tokens, blocks for about one and a half."""
    executor = ScriptedExecutor(num_blocks=24, block_size=32)
    prompts = [range(3 + i, 203 + i) for i in range(4)]
    with EngineRun(executor, chunk=64, start=False) as run:
        requests = [run.submit(prompt, greedy(300, ignore_eos=True)) for prompt in prompts]
        run.start()
        for request, prompt in zip(requests, prompts, strict=True):
            assert run.tokens(request) == made_up_answer(prompt, 300, 1000)
            assert run.wait(request).finish_reason is FinishReason.LENGTH
        snapshot = run.engine.snapshot()
        preempted = [run.wait(request).ledger.num_preemptions for request in requests]  # type: ignore[union-attr]
    assert snapshot.num_preemptions > 0
    assert sum(preempted) == snapshot.num_preemptions
    assert preempted[0] == 0, "the earliest is never the victim"
    assert snapshot.num_generated_tokens == 1200
    assert snapshot.num_prompt_tokens == 800


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_with_fewer_tokens_a_step_than_seats_whoever_runs_is_in_every_step(chunk: int | None) -> None:
    executor = ScriptedExecutor(max_num_batched_tokens=4)
    with EngineRun(executor, max_num_batched_tokens=4, max_num_seqs=64, chunk=chunk, start=False) as run:
        prompts = [range(3, 4 + i % 5) for i in range(12)]
        requests = [run.submit(prompt, 10) for prompt in prompts]
        run.start()
        for i, request in enumerate(requests):
            assert run.tokens(request) == made_up_answer(prompts[i], 10, 1000)
            steps = run.step_ids(request)
            assert steps == list(range(steps[0], steps[-1] + 1))
