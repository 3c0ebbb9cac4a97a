"""Technical English that every Python carries: the language reference, one document a topic.

Source: `pydoc_data.topics` of the running Python's standard library (what `help("topic")` prints), about 80 documents and
450,000 characters. Copyright Python Software Foundation, PSF License Agreement version 2 (code in it: Zero-Clause BSD).
The text is read where it is installed and not copied, so it differs a little between Python versions; figures name theirs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

Split = Literal["train", "calibrate", "held_out"]
SPLITS: tuple[Split, ...] = get_args(Split)

_SHARES = {"train": 40, "calibrate": 20, "held_out": 40}  # percent of the documents; fixed once, for every figure


@dataclass(frozen=True, slots=True)
class Document:
    """A text and the split it is in."""

    name: str
    text: str
    split: Split


def split_of(name: str) -> Split:
    """The split of a document, by a hash of its name: the same for ever, whatever else is added."""
    percent = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 100
    for split in SPLITS:
        percent -= _SHARES[split]
        if percent < 0:
            return split
    raise AssertionError("the shares do not add up to 100")


def documents(split: Split) -> tuple[Document, ...]:
    """All documents of a split, by name. Raises ValueError naming the splits."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is not known, there are: {', '.join(SPLITS)}")
    from pydoc_data.topics import topics

    names = sorted(name for name in topics if split_of(name) == split)
    return tuple(Document(name, topics[name], split) for name in names)
