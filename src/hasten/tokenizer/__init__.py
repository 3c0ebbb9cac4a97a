"""Text to token ids and back, chat templates, and text as a stream."""

from __future__ import annotations

from hasten.errors import Unsupported
from hasten.tokenizer.text_stream import TextDelta, TextStream, TokenText
from hasten.tokenizer.tokenizer import Tokenizer
from hasten.weights.checkpoint import TokenizerData

__all__ = ["TextDelta", "TextStream", "TokenText", "Tokenizer", "load"]

KINDS = ("gpt2",)  # values of tokenizer.ggml.model


def load(data: TokenizerData, *, vocab_size: int) -> Tokenizer:
    """Build the tokenizer a model file describes.

    Args:
        data: what the file says of it.
        vocab_size: rows of the model's head, `ModelSpec.vocab_size`.
    Raises: Unsupported for a kind or pre-tokenizer hasten does not know, BadFile if the parts contradict each other.
    """
    if data.kind not in KINDS:
        raise Unsupported(f"tokenizer kind {data.kind!r} is unknown, hasten knows {', '.join(KINDS)} (byte-level BPE)")
    from hasten.tokenizer.bpe import BpeTokenizer  # imports the tokenizers library: 40 ms nobody else should pay

    return BpeTokenizer(data, vocab_size=vocab_size)
