"""The blocks of one request, in the order of its tokens."""

from __future__ import annotations

from hasten.cache.block_pool import BlockId, BlockPool

KvGroup = int  # layers that see the same tokens: full, windowed, latent, state. A dense Llama has one group, 0


class BlockTable:
    """Logical to physical block ids of one request in one KV group; grows by whole blocks, holds one reference to each."""

    def __init__(self, pool: BlockPool, group: KvGroup = 0) -> None:
        self._pool = pool
        self._block_ids: list[BlockId] = []
        self.group = group

    def __len__(self) -> int:
        return len(self._block_ids)

    @property
    def block_ids(self) -> tuple[BlockId, ...]:
        return tuple(self._block_ids)

    def tail(self, start: int) -> list[BlockId]:
        """Block ids from entry `start` on."""
        return self._block_ids[start:]

    def num_missing(self, num_tokens: int) -> int:
        """Blocks to acquire before the table covers `num_tokens` tokens."""
        return max(0, self._pool.blocks_for(num_tokens) - len(self._block_ids))

    def grow(self, num_tokens: int) -> None:
        """Cover `num_tokens` tokens. Raises OutOfBlocks and changes nothing if the pool has too few."""
        missing = self.num_missing(num_tokens)
        if missing:
            self._block_ids += self._pool.acquire(missing)

    def release(self) -> None:
        """Give every block back; the table is empty after it."""
        block_ids, self._block_ids = self._block_ids, []
        self._pool.release(block_ids)
