"""The ledgers of the last answers, for `/explain/{id}`: only the key that asked may read them."""

from __future__ import annotations

from collections import OrderedDict

from hasten.request import Ledger

MAX_LEDGERS = 1024  # about 2 KB each


class LedgerRing:
    """The last MAX_LEDGERS answers' ledgers, one a choice.

    An answer is found by its own id and by the client's word for the request (`X-Request-Id`), the latest if there are
    several; each client has its own names, so that nobody can hide or learn of another's.
    """

    def __init__(self, max_ledgers: int = MAX_LEDGERS) -> None:
        self.max_ledgers = max_ledgers
        self._entries: OrderedDict[tuple[bytes, str], list[Ledger]] = OrderedDict()  # by client key and public id
        self._public_ids: dict[tuple[bytes, str], str] = {}  # by client key and the client's word
        self._words: dict[tuple[bytes, str], str] = {}  # the other way round

    def add(self, public_id: str, client_key: bytes, ledgers: list[Ledger], *, client_word: str = "") -> None:
        """Remember; the oldest goes when there are too many."""
        key = (client_key, public_id)
        self._entries[key] = ledgers
        if client_word:
            self._public_ids[client_key, client_word] = public_id
            self._words[key] = client_word
        while len(self._entries) > self.max_ledgers:
            self._forget(*self._entries.popitem(last=False)[0])

    def get(self, name: str, client_key: bytes) -> list[Ledger] | None:
        """None for an unknown name, and for that of somebody else's request: the two must look the same."""
        return self._entries.get((client_key, self._public_ids.get((client_key, name), name)))

    def _forget(self, client_key: bytes, public_id: str) -> None:
        word = self._words.pop((client_key, public_id), "")
        if self._public_ids.get((client_key, word)) == public_id:  # else it is a later request's by now
            del self._public_ids[client_key, word]
