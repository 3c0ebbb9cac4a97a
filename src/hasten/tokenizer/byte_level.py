"""The byte-level alphabet of GPT-2: every byte as one visible character, so that tokens are printable text.

Source: Radford et al. 2019, the published encoder: printable Latin-1 bytes stand for themselves, the other 68 take the
code points from U+0100 on, in order.
"""

from __future__ import annotations


def _alphabet() -> str:
    """Character of each byte, by position."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(shifted)) for byte in range(256))


BYTE_TO_CHAR = _alphabet()
_CHAR_TO_BYTE = {ord(char): byte for byte, char in enumerate(BYTE_TO_CHAR)}
_ALPHABET = frozenset(BYTE_TO_CHAR)


def to_bytes(token: str) -> bytes:
    """Bytes of a vocabulary entry. An entry with a character outside the alphabet is plain text: its UTF-8 bytes."""
    if not _ALPHABET.issuperset(token):
        return token.encode("utf-8", "replace")
    return token.translate(_CHAR_TO_BYTE).encode("latin-1")
