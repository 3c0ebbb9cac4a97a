"""A small real tokenizer: ids 0 to 255 are the bytes, then merges, chosen pieces and control tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import hasten.tokenizer
from hasten.tokenizer import Tokenizer
from hasten.weights.checkpoint import TokenizerData

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
CONTROL_TOKENS = ("<s>", "</s>", "<|turn|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


@functools.cache
def byte_char(byte: int) -> str:
    """GPT-2's visible character of a byte, from the rule: Latin-1's printable ones stay, the others follow from U+0100."""
    others = [b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174)]
    return chr(256 + others.index(byte)) if byte in others else chr(byte)


def byte_chars(data: bytes) -> str:
    return "".join(byte_char(byte) for byte in data)


@dataclass(frozen=True)
class Toy:
    """The parts of the vocabulary by id. `pieces` are reachable by id only: no merge makes them."""

    data: TokenizerData
    tokenizer: Tokenizer
    bos: int
    eos: int
    turn: int
    piece_ids: dict[bytes, int]

    def spell(self, *pieces: bytes | str) -> list[int]:
        """Ids of these pieces: a chosen piece if there is one, else its single bytes."""
        ids: list[int] = []
        for piece in pieces:
            data = piece.encode() if isinstance(piece, str) else piece
            ids += [self.piece_ids[data]] if data in self.piece_ids else list(data)
        return ids


def toy(
    *,
    pieces: Sequence[bytes] = (),
    merges: Sequence[tuple[bytes, bytes]] = (),
    add_bos: bool = False,
    chat_template: str | None = CHAT_TEMPLATE,
    pre: str = "gpt-2",
    num_padding: int = 0,
    user_defined: Sequence[str] = (),
) -> Toy:
    """A tokenizer over bytes. Ids: bytes, results of `merges`, `pieces`, `user_defined`, control tokens, then padding."""
    spelled = [bytes([byte]) for byte in range(256)]
    spelled += [left + right for left, right in merges if left + right not in spelled]
    spelled += [piece for piece in dict.fromkeys(pieces) if piece not in spelled]
    tokens = [byte_chars(data) for data in spelled] + list(user_defined) + list(CONTROL_TOKENS)
    types = [NORMAL] * len(spelled) + [USER_DEFINED] * len(user_defined) + [CONTROL] * len(CONTROL_TOKENS)
    bos, eos, turn = (tokens.index(name) for name in CONTROL_TOKENS)
    data = TokenizerData(
        kind="gpt2",
        pre=pre,
        tokens=tuple(tokens),
        token_types=tuple(types),
        merges=tuple(f"{byte_chars(left)} {byte_chars(right)}" for left, right in merges),
        bos_token_id=bos,
        eos_token_ids=(eos,),
        add_bos=add_bos,
        add_space_prefix=False,
        chat_template=chat_template,
    )
    tokenizer = hasten.tokenizer.load(data, vocab_size=len(tokens) + num_padding)
    return Toy(data, tokenizer, bos, eos, turn, {piece: i for i, piece in enumerate(spelled)})
