"""What a step means, on both executors: chunks, company, preemption, shared blocks, cancelling, plans that are wrong."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hasten.engine.executor import BadPlan
from hasten.engine.reference import ReferenceExecutor
from hasten.errors import EngineStopped
from hasten.kv_store import KvLayout
from hasten.request import SamplingParams
from hasten.scheduler.plan import BlockTableUpdate, NewRequest, ScheduledChunk, StepPlan, table_update
from tests.support.golden import EXECUTORS, executor
from tests.support.native_driver import Driver, Track, generate
from tests.support.toy_gguf import ArrayCheckpoint, toy_spec
from tests.support.toy_models import GREEDY_TOY, toy_prompt

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
SPEC, SEED = GREEDY_TOY


@pytest.fixture(scope="module")
def checkpoint():
    return ArrayCheckpoint.random(SPEC, seed=SEED)


@pytest.fixture(params=EXECUTORS)
def running(request, checkpoint):
    made = executor(request.param, checkpoint, num_blocks=40, max_num_seqs=8, max_num_batched_tokens=128)
    yield made
    made.close()


def prompt(i: int, num_tokens: int = 40) -> tuple[int, ...]:
    return tuple(toy_prompt(SPEC, 500 + i, num_tokens))


@pytest.mark.parametrize("chunk", [1, 7, 31, 32, 33])
def test_same_tokens_for_every_chunk_size(running, chunk):
    whole = generate(running, prompt(0), GREEDY, 24).token_ids
    assert generate(running, prompt(0), GREEDY, 24, chunk=chunk).token_ids == whole
    assert len(set(whole)) > 5, "a model that repeats itself would show nothing"


def test_same_tokens_alone_in_company_and_after_preemption(running):
    alone = [generate(running, prompt(i, 5 + 12 * i), GREEDY, 24).token_ids for i in range(4)]
    tracks = [Track(10 + i, prompt(i, 5 + 12 * i), GREEDY, 24, chunk=9 + i) for i in range(4)]
    tracks[1].preempt_after, tracks[3].preempt_after = 3, 10
    Driver(running).run(tracks)
    assert [track.token_ids for track in tracks] == alone


def test_a_shared_prefix_gives_the_same_tokens(running):
    """The second request's table starts with the first one's block: only the rest is computed."""
    alone = generate(running, prompt(0), GREEDY, 2).token_ids
    first = StepPlan(1, (), (NewRequest(1, prompt(0), GREEDY),), (table_update(1, 0, [5, 6]),), (ScheduledChunk(1, 0, 40),))
    running.submit(first).result()
    other = StepPlan(2, (), (NewRequest(2, prompt(0), GREEDY),), (table_update(2, 0, [5, 9]),), (ScheduledChunk(2, 32, 8),))
    assert running.submit(other).result().chunks[0].token_ids == (alone[0],)


def test_slots_past_the_context_and_other_blocks_are_never_read(checkpoint):
    running = ReferenceExecutor(checkpoint, num_blocks=8, max_model_len=128, max_num_batched_tokens=128, max_num_seqs=4)
    expected = generate(running, prompt(0), GREEDY, 24).token_ids
    running.kv.blocks[:] = np.nan
    assert generate(running, prompt(0), GREEDY, 24).token_ids == expected


def test_the_reference_kv_has_the_layout_of_kv_store(checkpoint):
    running = ReferenceExecutor(checkpoint, num_blocks=4, max_model_len=128, max_num_batched_tokens=128, max_num_seqs=4)
    layout = KvLayout("f32", SPEC.num_layers, SPEC.num_kv_heads, SPEC.head_dim)
    assert running.info.kv_bytes == running.kv.blocks.nbytes == 4 * layout.block_bytes
    block = np.arange(layout.block_bytes // 4, dtype=np.float32).reshape(running.kv.blocks.shape[1:])
    for layer, is_value, head in [(0, False, 1), (1, True, 0), (2, True, 1)]:
        assert block[layer, int(is_value), head, 0, 0] * 4 == layout.offset(layer, is_value, head)


def test_a_chunk_before_the_last_known_token_draws_nothing(running):
    plan = StepPlan(1, (), (NewRequest(1, prompt(0), GREEDY),), (table_update(1, 0, [0, 1]),), (ScheduledChunk(1, 0, 39),))
    assert running.submit(plan).result().chunks[0].token_ids == ()
    assert len(running.submit(StepPlan(2, chunks=(ScheduledChunk(1, 39, 1),))).result().chunks[0].token_ids) == 1


def test_max_tokens_0_scores_the_prompt_and_draws_nothing(running):
    sampling = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=2)
    plan = StepPlan(1, (), (NewRequest(1, prompt(0), sampling),), (table_update(1, 0, [0, 1]),), (ScheduledChunk(1, 0, 40),))
    (chunk,) = running.submit(plan).result().chunks
    assert chunk.token_ids == ()
    assert [entry.token_id for entry in chunk.prompt_logprobs] == list(prompt(0)[1:])
    assert all(len(entry.top) == 2 for entry in chunk.prompt_logprobs)


def test_prompt_logprobs_do_not_depend_on_chunks(running):
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=3, logprobs=3)
    whole, pieces = generate(running, prompt(2), sampling, 1), generate(running, prompt(2), sampling, 1, chunk=7)
    assert len(whole.prompt_logprobs) == len(pieces.prompt_logprobs) == 39
    for one, other in zip([*whole.prompt_logprobs, *whole.logprobs], [*pieces.prompt_logprobs, *pieces.logprobs], strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]


def test_a_cancelled_step_counts_for_nothing(running):
    """Cancelled before it began or as it ran; the chunks can be planned again. A finished step is not cancelled any more."""
    expected = generate(running, prompt(0), GREEDY, 3).token_ids
    plan = StepPlan(1, (), (NewRequest(7, prompt(0), GREEDY),), (table_update(7, 0, [3, 2]),), (ScheduledChunk(7, 0, 40),))
    handle = running.submit(plan)
    handle.cancel()
    result = handle.result()
    if result.cancelled:  # the native team may have been faster than the cancel
        assert result.chunks == ()
        result = running.submit(StepPlan(2, chunks=(ScheduledChunk(7, 0, 40),))).result()
    assert result.chunks[0].token_ids == (expected[0],)
    handle.cancel()
    assert running.submit(StepPlan(3, chunks=(ScheduledChunk(7, 40, 1),))).result().chunks[0].token_ids == (expected[1],)


def test_cancel_is_seen_between_layers(checkpoint):
    running = ReferenceExecutor(checkpoint, num_blocks=8, max_model_len=128, max_num_batched_tokens=128, max_num_seqs=4)
    plan = StepPlan(1, (), (NewRequest(1, prompt(0), GREEDY),), (table_update(1, 0, [0, 1]),), (ScheduledChunk(1, 0, 40),))
    handle = running.submit(plan)
    layers: list[int] = []
    attention = running.decoder._attention

    def attention_then_cancel(i, *arguments):
        layers.append(i)
        if i == 1:
            thread = threading.Thread(target=handle.cancel)
            thread.start()
            thread.join()
        return attention(i, *arguments)

    running.decoder._attention = attention_then_cancel
    assert handle.result().cancelled
    assert layers == [0, 1]


def test_not_finite_logits_fail_their_request_alone(checkpoint):
    """A row of the embedding is NaN: who reads that token fails, the other request does not."""
    weights = dict(checkpoint.weights)
    weights["embed"] = weights["embed"].copy()
    weights["embed"][9] = np.nan
    broken = ArrayCheckpoint(SPEC, weights)
    for kind in EXECUTORS:
        running = executor(kind, broken)
        good = tuple(token for token in prompt(0) if token != 9)
        tracks = [Track(1, (3, 9, 4), GREEDY, 4), Track(2, good, GREEDY, 4)]
        Driver(running).run(tracks)
        assert "finite" in (tracks[0].error or "") or "NaN" in (tracks[0].error or "")
        assert (tracks[1].error, len(tracks[1].token_ids)) == (None, 4)
        running.close()


NEW = NewRequest(1, (5, 6, 7), GREEDY)
TABLE = table_update(1, 0, [0])
CHUNK = ScheduledChunk(1, 0, 3)
BAD_PLANS = {
    "unknown request": StepPlan(1, chunks=(CHUNK,)),
    "table of nobody": StepPlan(1, block_tables=(TABLE,)),
    "new twice": StepPlan(1, new=(NEW, NEW)),
    "empty prompt": StepPlan(1, new=(NewRequest(1, (), GREEDY),)),
    "prompt past max_model_len": StepPlan(1, new=(NewRequest(1, (5,) * 513, GREEDY),)),
    "token outside the vocabulary": StepPlan(1, new=(NewRequest(1, (5, SPEC.vocab_size), GREEDY),)),
    "negative token": StepPlan(1, new=(NewRequest(1, (-1,), GREEDY),)),
    "two chunks of one request": StepPlan(1, (), (NEW,), (TABLE,), (ScheduledChunk(1, 0, 1), ScheduledChunk(1, 1, 1))),
    "chunk past the tokens": StepPlan(1, (), (NEW,), (TABLE,), (ScheduledChunk(1, 1, 3),)),
    "empty chunk": StepPlan(1, (), (NEW,), (TABLE,), (ScheduledChunk(1, 0, 0),)),
    "negative start": StepPlan(1, (), (NEW,), (TABLE,), (ScheduledChunk(1, -1, 2),)),
    "no blocks": StepPlan(1, (), (NEW,), (), (CHUNK,)),
    "block outside the pool": StepPlan(1, (), (NEW,), (table_update(1, 0, [40]),), (CHUNK,)),
    "negative block": StepPlan(1, (), (NEW,), (table_update(1, 0, [-1]),), (CHUNK,)),
    "hole in the table": StepPlan(1, (), (NEW,), (table_update(1, 1, [0]),), (CHUNK,)),
    "block ids of another type": StepPlan(1, (), (NEW,), (BlockTableUpdate(1, 0, np.array([0.5])),), (CHUNK,)),  # type: ignore[arg-type]
    "too many tokens": StepPlan(
        1, (), (NewRequest(1, (5,) * 129, GREEDY),), (table_update(1, 0, range(5)),), (ScheduledChunk(1, 0, 129),)
    ),
    "too many requests": StepPlan(
        1,
        (),
        tuple(NewRequest(i, (5,), GREEDY) for i in range(9)),
        tuple(table_update(i, 0, [i]) for i in range(9)),
        tuple(ScheduledChunk(i, 0, 1) for i in range(9)),
    ),
}


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_plan_that_contradicts_the_executor_changes_nothing(running, name):
    with pytest.raises(BadPlan):
        running.submit(BAD_PLANS[name]).result()
    good = StepPlan(2, (), (NEW,), (TABLE,), (CHUNK,))
    assert len(running.submit(good).result().chunks[0].token_ids) == 1


def test_finished_may_be_told_twice_and_frees_the_id(running):
    plan = StepPlan(1, (), (NEW,), (TABLE,), (CHUNK,))
    first = running.submit(plan).result().chunks
    assert running.submit(StepPlan(2, (1,), (NEW,), (TABLE,), (CHUNK,))).result().chunks == first
    running.submit(StepPlan(3, (1,))).result()
    running.submit(StepPlan(4, (1, 99))).result()
    with pytest.raises(BadPlan):
        running.submit(StepPlan(5, chunks=(CHUNK,)))


def test_one_step_at_a_time_and_none_after_close(running):
    handle = running.submit(StepPlan(1, (), (NEW,), (TABLE,), (CHUNK,)))
    with pytest.raises(BadPlan, match="before the result"):
        running.submit(StepPlan(2))
    assert handle.result() is handle.result()
    running.close()
    running.close()
    with pytest.raises(EngineStopped):
        running.submit(StepPlan(3))


def test_info(running, checkpoint):
    info = running.info
    assert (info.num_blocks, info.block_size, info.vocab_size) == (40, 32, SPEC.vocab_size)
    assert (info.max_model_len, info.max_num_batched_tokens) == (512, 128)
    assert info.weight_bytes >= sum(weight.nbytes for weight in checkpoint.weights.values())
    other = ReferenceExecutor(
        ArrayCheckpoint(toy_spec(), ArrayCheckpoint.random().weights, fingerprint="other"),
        num_blocks=1, max_model_len=32, max_num_batched_tokens=32, max_num_seqs=1,
    )  # fmt: skip
    assert other.info.numerics_profile != info.numerics_profile
