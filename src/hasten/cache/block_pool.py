"""Who owns which KV block: ids and reference counts, never an array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hasten.errors import OutOfBlocks

BlockId = int


class BlockPool:
    """Owns every block; requests (and later cached prefixes) hold counted references.

    Free blocks are a stack: what was used last is used next, so memory that no request has needed yet stays untouched.

    Args:
        num_blocks: ids are 0 … num_blocks - 1.
        block_size: tokens in a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks: num_blocks is {num_blocks}, block_size is {block_size}")
        self.block_size = block_size
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def acquire(self, num_blocks: int) -> list[BlockId]:
        """Take `num_blocks` free blocks, each with one reference. Raises OutOfBlocks and takes none if there are fewer."""
        if num_blocks < 0:
            raise ValueError(f"cannot acquire {num_blocks} blocks")
        if num_blocks > len(self._free):
            raise OutOfBlocks(f"{num_blocks} blocks wanted, {len(self._free)} of {self.num_blocks} are free")
        block_ids = [self._free.pop() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def share(self, block_ids: Sequence[BlockId]) -> None:
        """One more reference to each. Raises ValueError, and counts none, if one of them is free."""
        self._check_held(Counter(dict.fromkeys(block_ids, 1)), "shared")
        for block_id in block_ids:
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[BlockId]) -> None:
        """Drop one reference to each, given in the order of a block table; those without any left are free.

        The tail is taken again first: the head of a prefix outlives its end. Raises ValueError, and drops none, if a
        block is free or would be released more often than it is held.
        """
        self._check_held(Counter(block_ids), "released")
        for block_id in block_ids:
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)

    def check(self) -> None:
        """Every id is free or referenced, never both, none is lost. Raises AssertionError naming the ids."""
        free = Counter(self._free)
        twice = [block_id for block_id, count in free.items() if count > 1]
        if twice:
            raise AssertionError(f"blocks are free twice: {twice}")
        for block_id, count in enumerate(self._ref_counts):
            if count < 0 or (count > 0) == (block_id in free):
                raise AssertionError(f"block {block_id} has {count} references, free: {block_id in free}")

    def _check_held(self, wanted: Counter[BlockId], verb: str) -> None:
        for block_id, count in wanted.items():
            if not 0 <= block_id < self.num_blocks:
                raise ValueError(f"block {block_id} cannot be {verb}: the pool has 0 … {self.num_blocks - 1}")
            if self._ref_counts[block_id] < count:
                raise ValueError(f"block {block_id} is {verb} {count} ×, it has {self._ref_counts[block_id]} references")
