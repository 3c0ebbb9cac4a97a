"""The text data: one split, fixed, complete, without overlap."""

from __future__ import annotations

from pydoc_data.topics import topics

import pytest

from hasten.data import SPLITS, documents
from hasten.data.topics import split_of


def test_splits_hold_every_document_once():
    names = [document.name for split in SPLITS for document in documents(split)]
    assert sorted(names) == sorted(topics)
    assert all(document.split == split for split in SPLITS for document in documents(split))
    assert all(document.text == topics[document.name] for document in documents("held_out"))


def test_the_split_of_a_name_never_changes():
    """Figures published with one split cannot be compared with another."""
    expected = {
        "assert": "held_out",
        "assignment": "train",
        "async": "train",
        "binary": "held_out",
        "calls": "train",
        "class": "train",
        "lambda": "held_out",
        "yield": "train",
        "import": "train",
        "typesseq": "train",
        "a name added later": "calibrate",
    }
    assert {name: split_of(name) for name in expected} == expected


def test_held_out_text_is_enough_for_20000_tokens():
    assert sum(len(document.text) for document in documents("held_out")) > 20_000 * 5


def test_an_unknown_split_names_the_known():
    with pytest.raises(ValueError, match="'test' is not known, there are: train, calibrate, held_out"):
        documents("test")  # type: ignore[arg-type]
