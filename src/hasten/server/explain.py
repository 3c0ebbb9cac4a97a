"""The ledgers of the last answers, for `/explain/{id}`: only the key that asked may read them."""

from __future__ import annotations

from collections import OrderedDict

from hasten.request import Ledger

MAX_LEDGERS = 1024  # about 2 KB each


class LedgerRing:
    """The last MAX_LEDGERS answers' ledgers, one a choice."""

    def __init__(self, max_ledgers: int = MAX_LEDGERS) -> None:
        self.max_ledgers = max_ledgers
        self._entries: OrderedDict[str, tuple[bytes, list[Ledger]]] = OrderedDict()

    def add(self, public_id: str, client_key: bytes, ledgers: list[Ledger]) -> None:
        """Remember; the oldest goes when there are too many."""
        self._entries[public_id] = (client_key, ledgers)
        while len(self._entries) > self.max_ledgers:
            self._entries.popitem(last=False)

    def get(self, public_id: str, client_key: bytes) -> list[Ledger] | None:
        """None for an unknown id, and for the id of somebody else's request: the two must look the same."""
        entry = self._entries.get(public_id)
        return entry[1] if entry is not None and entry[0] == client_key else None
