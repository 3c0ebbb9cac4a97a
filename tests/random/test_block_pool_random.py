"""The block pool against a dictionary of counts, in random order, misuse included."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.cache.block_pool import BlockPool
from hasten.errors import OutOfBlocks

NUM_BLOCKS = 7
_ids = st.lists(st.integers(-1, NUM_BLOCKS), max_size=4)
_steps = st.one_of(
    st.tuples(st.just("acquire"), st.integers(0, NUM_BLOCKS + 1)),
    st.tuples(st.just("share"), _ids),
    st.tuples(st.just("release"), _ids),
    st.tuples(st.just("release held"), st.integers(0, 100)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_steps, max_size=40))
def test_pool_matches_counts(steps: list[tuple[str, int | list[int]]]) -> None:
    pool = BlockPool(NUM_BLOCKS, 32)
    held: Counter[int] = Counter()
    for verb, value in steps:
        if verb == "release held" and +held:
            verb, value = "release", [sorted(+held)[value % len(+held)]]  # type: ignore[operator]
        if verb == "acquire":
            _acquire(pool, held, value)  # type: ignore[arg-type]
        elif isinstance(value, list):
            _change(pool, held, verb, value)
        pool.check()
        assert pool.num_free == NUM_BLOCKS - len(+held)
    pool.release(list(held.elements()))
    assert sorted(pool.acquire(NUM_BLOCKS)) == list(range(NUM_BLOCKS))


def _acquire(pool: BlockPool, held: Counter[int], num_blocks: int) -> None:
    if num_blocks > NUM_BLOCKS - len(+held):
        with pytest.raises(OutOfBlocks):
            pool.acquire(num_blocks)
        return
    blocks = pool.acquire(num_blocks)
    assert len(set(blocks)) == num_blocks
    assert not set(blocks) & set(+held)
    held.update(blocks)


def _change(pool: BlockPool, held: Counter[int], verb: str, block_ids: list[int]) -> None:
    if verb == "share":
        is_legal = all(held[block_id] > 0 for block_id in block_ids)
    else:
        is_legal = all(held[block_id] >= count for block_id, count in Counter(block_ids).items())
    change = pool.share if verb == "share" else pool.release
    if not is_legal:
        with pytest.raises(ValueError, match="block"):
            change(block_ids)
        return
    change(block_ids)
    (held.update if verb == "share" else held.subtract)(block_ids)
