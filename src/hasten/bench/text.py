"""Text of an exact number of tokens, the same on every machine for the same seed and tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable

from hasten.bench.tokens import TokenCounter
from hasten.bench.words import QUESTIONS, WORDS
from hasten.errors import UsageError

_MAX_ROUNDS = 40
_SENTENCE = 12  # words
_NEARLY = 4  # tokens: from here on word by word
_FILLERS = ("a", "of", "in", "to", "is", "it", "on", "and", "the", "I", "we", "so")


Count = Callable[[str], int]


class TextMaker:
    """Made-up sentences. `seed` and the name of a piece decide it, whatever was made before."""

    def __init__(self, counter: TokenCounter, *, seed: int) -> None:
        self._counter = counter
        self._seed = seed
        # from all words at once, and not from what was made before: a piece must not depend on its predecessors
        self._tokens_per_word = max(1.0, counter.count(" ".join(WORDS)) / len(WORDS))

    def rng(self, name: str) -> random.Random:
        return random.Random(f"text:{self._seed}:{name}")

    def exact(self, name: str, num_tokens: int, *, prefix: str = "", count: Count | None = None) -> str:
        """`prefix` and then words, `num_tokens` tokens in all.

        Args:
            count: how to count a text; None counts the text alone. It may count what a server puts around it, too.
        Raises: UsageError when prefix and surroundings alone are longer, or the length cannot be met.
        """
        count = count or self._counter.count
        rng = self.rng(name)
        words: list[str] = []
        missing = num_tokens - count(prefix) if prefix else num_tokens
        for _ in range(_MAX_ROUNDS):
            if missing == 0:
                return _join(prefix, words)
            if missing < 0:
                # no word is less than a token, so this goes back at least as far as needed and often further
                keep = max(0 if prefix else 1, len(words) + missing)
                if keep >= len(words) and words and words != [_FILLERS[0]]:
                    words[:] = [_FILLERS[0]]  # the one word that is left may be two tokens
                elif keep >= len(words):
                    have = num_tokens - missing
                    raise UsageError(f"{num_tokens} tokens are asked for, but the fixed part of the prompt has {have}")
                else:
                    del words[keep:]
            elif missing > _NEARLY:
                words.extend(self._more(rng, len(words), max(1, int(missing / self._tokens_per_word))))
            else:
                _fill(words, prefix, missing, count)
            missing = num_tokens - count(_join(prefix, words))
        raise UsageError(f"no text of exactly {num_tokens} tokens was found for {name!r} with {self._counter.name}")

    @staticmethod
    def _more(rng: random.Random, have: int, count: int) -> list[str]:
        words = []
        for place in range(have, have + count):
            word = rng.choice(WORDS)
            words.append(f"{word}." if place % _SENTENCE == _SENTENCE - 1 and count > 3 else word)
        return words

    def question(self, name: str) -> str:
        rng = self.rng(name)
        return rng.choice(QUESTIONS).format(a=rng.choice(WORDS), b=rng.choice(WORDS))


def _join(prefix: str, words: list[str]) -> str:
    body = " ".join(words)
    return f"{prefix} {body}" if prefix and body else prefix or body


def _fill(words: list[str], prefix: str, missing: int, count: Count) -> None:
    """Add short words: all at once where each is a token, else the first that does not go too far.

    Where all go too far, the last word is replaced by one of them, to try again from there.
    """
    before = list(words)
    words.extend(_FILLERS[:missing])
    wanted = count(_join(prefix, before)) + missing if before or prefix else missing
    if count(_join(prefix, words)) == wanted:
        return
    for filler in _FILLERS:
        words[:] = [*before, filler]
        if count(_join(prefix, words)) <= wanted:
            return
    words[:] = [*before[:-1], _FILLERS[0]]
