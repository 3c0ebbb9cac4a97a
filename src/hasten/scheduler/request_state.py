"""What the scheduler knows of one request: counts, blocks, status."""

from __future__ import annotations

from hasten.cache.block_table import BlockTable
from hasten.request import NEXT_STATUS, RequestId, RequestStatus
from hasten.scheduler.plan import BlockTableUpdate, NewRequest, ScheduledChunk, table_update


class RequestState:
    """One request between `Scheduler.add` and `Scheduler.finish`.

    `num_tokens` is prompt + generated, `num_computed_tokens` of these have their K/V in the store. The newest token is
    never computed, so a request that only decodes has one token left.
    """

    __slots__ = (
        "block_table",
        "new",
        "num_computed_tokens",
        "num_preemptions",
        "num_sent_blocks",
        "num_tokens",
        "sent",
        "status",
    )

    def __init__(self, new: NewRequest, block_table: BlockTable) -> None:
        self.new = new
        self.block_table = block_table
        self.status = RequestStatus.WAITING
        self.num_tokens = len(new.prompt_token_ids)
        self.num_computed_tokens = 0
        self.sent = False  # the executor has met this request
        self.num_sent_blocks = 0  # entries of block_table that the executor has

    @property
    def request_id(self) -> RequestId:
        return self.new.request_id

    @property
    def num_left(self) -> int:
        """Tokens to compute before the next one is drawn."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """The next token follows from one more: prompts of one token count as well, their step is the same."""
        return self.num_left == 1

    def move_to(self, status: RequestStatus) -> None:
        """Raises ValueError for a move that NEXT_STATUS does not list."""
        if status not in NEXT_STATUS[self.status]:
            raise ValueError(f"request {self.request_id} cannot go from {self.status.value} to {status.value}")
        self.status = status

    def preempt(self) -> None:
        """Back to waiting: blocks are given up; prompt and generated tokens will be computed again as one run."""
        self.move_to(RequestStatus.WAITING)
        self.block_table.release()
        self.num_computed_tokens = 0
        self.num_sent_blocks = 0

    def chunk(self, num_tokens: int) -> ScheduledChunk:
        return ScheduledChunk(self.request_id, self.num_computed_tokens, num_tokens)

    def take_update(self) -> BlockTableUpdate | None:
        """The part of the block table that the executor does not have yet; from now on it counts as sent."""
        start = self.num_sent_blocks
        if start == len(self.block_table):
            return None
        self.num_sent_blocks = len(self.block_table)
        return table_update(self.request_id, start, self.block_table.tail(start))
