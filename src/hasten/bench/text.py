"""Text of an exact number of tokens, the same on every machine for the same seed and tokenizer."""

from __future__ import annotations

import random

from hasten.bench.tokens import TokenCounter
from hasten.bench.words import QUESTIONS, WORDS
from hasten.errors import UsageError

_MAX_ROUNDS = 40
_SENTENCE = 12  # words


class TextMaker:
    """Made-up sentences. `seed` and the name of a piece decide it, whatever was made before."""

    def __init__(self, counter: TokenCounter, *, seed: int) -> None:
        self._counter = counter
        self._seed = seed
        self._words_per_token = 0.8

    def rng(self, name: str) -> random.Random:
        return random.Random(f"text:{self._seed}:{name}")

    def exact(self, name: str, num_tokens: int, *, prefix: str = "") -> str:
        """`prefix` and then words, `num_tokens` tokens in all.

        Raises: UsageError when the prefix alone is longer, or the length cannot be met.
        """
        rng = self.rng(name)
        words: list[str] = []
        text = prefix
        missing = num_tokens - self._counter.count(prefix) if prefix else num_tokens
        if missing < 0:
            raise UsageError(f"{num_tokens} tokens are asked for, but the fixed part of the text has {num_tokens - missing}")
        for round_number in range(_MAX_ROUNDS):
            if missing == 0 and text:
                return text
            if missing > 0:
                share = self._words_per_token if round_number == 0 else 1.0
                words.extend(self._more(rng, len(words), max(1, int(missing * share))))
            else:
                # a word may be two tokens: going back one further than needed leaves a gap that a plain word fills
                del words[max(0, len(words) + missing) :]
                if round_number % 3 == 2 and words:
                    words.pop()
            text = _join(prefix, words)
            missing = num_tokens - (self._counter.count(text) if text else 0)
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
