"""Search for several stop strings at once, one character at a time.

Which stop wins is a property of the text alone, never of how it was cut into tokens: the stop string that is complete
first; of several that end at the same character, the longest (it cuts the text earliest).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hasten.errors import InvalidRequest

# a node costs about 250 bytes; OpenAI allows 4 stop strings, real ones have some tens of characters
MAX_STOP_CHARS = 8192


class StopMatcher:
    """The automaton of Aho and Corasick 1975. Immutable: callers keep the state, a number, 0 at the start.

    `depth[state]` is the length of the longest end of the text so far that could still become a stop string.

    Raises: InvalidRequest for an empty stop string, or more than MAX_STOP_CHARS characters in all.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise InvalidRequest("stop must hold non-empty strings", param="stop")
        total = sum(map(len, stops))
        if total > MAX_STOP_CHARS:
            raise InvalidRequest(f"stop has {total} characters in all, the limit is {MAX_STOP_CHARS}", param="stop")
        self._next: list[dict[str, int]] = [{}]
        self._match: list[str | None] = [None]  # the longest stop string that ends in this state
        self.depth = [0]
        for stop in stops:
            self._insert(stop)
        self._fail = [0] * len(self._next)  # the state of the longest proper end that is a state too
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self._next[state].get(char)
            if following is None:
                following = len(self._next)
                self._next[state][char] = following
                self._next.append({})
                self._match.append(None)
                self.depth.append(self.depth[state] + 1)
            state = following
        self._match[state] = stop

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:  # by depth: the failure state of a parent is known before its children's
            state = queue.popleft()
            if self._match[state] is None:
                self._match[state] = self._match[self._fail[state]]
            for char, child in self._next[state].items():
                self._fail[child] = self._step(self._fail[state], char)
                queue.append(child)

    def _step(self, state: int, char: str) -> int:
        while True:
            following = self._next[state].get(char)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fail[state]

    def feed(self, state: int, text: str) -> tuple[int, int, str | None]:
        """Follow `text` from `state`, up to the first complete stop string.

        Returns: the new state, the characters read, and the stop string that ends at the last of them, if any. A
        character costs amortised constant time.
        """
        root = self._next[0]
        for i, char in enumerate(text):
            state = self._step(state, char) if state else root.get(char, 0)
            stop = self._match[state]
            if stop is not None:
                return state, i + 1, stop
        return state, len(text), None
