"""Block pool and table: who owns what, and that misuse is refused there and then."""

from __future__ import annotations

import pytest

from hasten.cache.block_pool import BlockPool
from hasten.cache.block_table import BlockTable
from hasten.errors import OutOfBlocks


def test_acquire_gives_distinct_blocks_until_there_are_none() -> None:
    pool = BlockPool(4, 32)
    first, second = pool.acquire(3), pool.acquire(1)
    assert sorted(first + second) == [0, 1, 2, 3]
    assert (pool.num_free, pool.num_blocks) == (0, 4)
    pool.check()


def test_acquire_is_all_or_nothing() -> None:
    pool = BlockPool(4, 32)
    pool.acquire(2)
    with pytest.raises(OutOfBlocks, match="3 blocks wanted, 2 of 4 are free"):
        pool.acquire(3)
    assert pool.num_free == 2
    assert pool.acquire(0) == []
    pool.check()


def test_shared_blocks_are_free_after_the_last_release() -> None:
    pool = BlockPool(4, 32)
    blocks = pool.acquire(2)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_free == 2
    pool.release(blocks)
    assert pool.num_free == 4
    pool.check()


def test_the_tail_of_a_table_is_used_again_before_its_head() -> None:
    pool = BlockPool(4, 32)
    blocks = pool.acquire(4)
    pool.release(blocks)
    assert pool.acquire(4) == blocks[::-1]


@pytest.mark.parametrize("bad", [[2], [0, 0], [0, 2], [-1], [4]])
def test_release_of_what_is_not_held_raises_and_changes_nothing(bad: list[int]) -> None:
    pool = BlockPool(4, 32)
    assert pool.acquire(2) == [0, 1]
    with pytest.raises(ValueError, match="block"):
        pool.release(bad)
    assert pool.num_free == 2
    pool.release([0, 1])
    with pytest.raises(ValueError, match="block 1 is released 1 ×, it has 0 references"):
        pool.release([1])
    pool.check()


@pytest.mark.parametrize("bad", [[2], [0, 3], [4], [-1]])
def test_share_of_a_free_block_raises_and_changes_nothing(bad: list[int]) -> None:
    pool = BlockPool(4, 32)
    assert pool.acquire(2) == [0, 1]
    with pytest.raises(ValueError, match="block"):
        pool.share(bad)
    pool.release([0, 1])
    assert pool.num_free == 4
    pool.check()


def test_bad_sizes_are_refused() -> None:
    for num_blocks, block_size in ((0, 32), (4, 0), (-1, 32)):
        with pytest.raises(ValueError, match="a pool needs blocks"):
            BlockPool(num_blocks, block_size)
    with pytest.raises(ValueError, match="cannot acquire -1"):
        BlockPool(4, 32).acquire(-1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool._free.append(pool._free[0]),  # free twice
        lambda pool: pool._free.append(0),  # free and held
        lambda pool: pool._free.pop(),  # lost
        lambda pool: pool._ref_counts.__setitem__(3, 1),  # free and referenced
        lambda pool: pool._ref_counts.__setitem__(0, -1),
    ],
)
def test_check_sees_every_kind_of_damage(damage) -> None:  # type: ignore[no-untyped-def]
    pool = BlockPool(4, 32)
    assert pool.acquire(1) == [0]
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError):
        pool.check()


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_table_grows_by_whole_blocks(num_tokens: int, num_blocks: int) -> None:
    pool = BlockPool(4, 32)
    table = BlockTable(pool)
    assert table.num_missing(num_tokens) == num_blocks
    table.grow(num_tokens)
    table.grow(num_tokens)
    assert (len(table), pool.num_free, table.num_missing(num_tokens)) == (num_blocks, 4 - num_blocks, 0)
    assert table.tail(1) == list(table.block_ids)[1:]
    table.release()
    table.release()
    assert (len(table), pool.num_free) == (0, 4)


def test_table_that_cannot_grow_stays_as_it_was() -> None:
    pool = BlockPool(4, 32)
    table, other = BlockTable(pool), BlockTable(pool)
    table.grow(40)
    other.grow(33)
    before = table.block_ids
    with pytest.raises(OutOfBlocks):
        table.grow(65)
    assert table.block_ids == before
    pool.check()
