"""From the bytes of a request body to a struct, refusing what JSON parsers disagree about.

`scan` walks the body once, in pieces that let the event loop run between them, and refuses depth, duplicate keys and
sheer numbers of values before anything is built from them; `decode` then parses, naming the field that is wrong.
"""

from __future__ import annotations

import asyncio
import codecs
import functools
import re
from typing import Any, TypeVar, cast

import msgspec

from hasten.errors import InvalidRequest
from hasten.server.protocol import RANGES
from hasten.server.quoting import cut

MAX_DEPTH = 64  # OpenAI's deepest body, a tool's schema, stays well below
MAX_VALUES = 2**18  # what msgspec builds in about 5 ms; more ids than two contexts of 128k
TOKENS_PER_SLICE = 1000  # about 1 ms of scanning before other requests get the loop;
BYTES_PER_SLICE = 2**17  # the same in bytes where strings and brackets are rare
MAX_REASON = 130  # characters of the parser's words, which may quote a name

# a run without marks, then a whole string or a bracket; possessive: there is never anything to go back to
_TOKEN = re.compile(rb'[^"{}\[\]]*+("(?:[^"\\]++|\\.)*+"|[{}\[\]])', re.DOTALL)
_GAP = re.compile(rb'[^"{}\[\]]*+')
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*+:")
_WHERE = re.compile(r" - at `\$\.?([^`]*)`")
_T = TypeVar("_T")


async def scan(body: bytes, *, max_values: int = MAX_VALUES) -> frozenset[str]:
    """Names of the top-level fields of a JSON object.

    Only structure is checked, so that malformed JSON may pass: `decode` refuses it afterwards.

    Raises: InvalidRequest for an empty body, one that is not UTF-8, nesting deeper than MAX_DEPTH, a key given twice in
    one object, or more than max_values values.
    """
    if not body.strip(b" \t\r\n"):
        raise InvalidRequest("the body is empty: send a JSON object", code="invalid_json")
    if not body.isascii():
        await _check_utf8(body)
    scanner = _Scanner(body, max_values)
    while scanner.advance():
        await asyncio.sleep(0)
    return frozenset(scanner.top_level)


async def _check_utf8(body: bytes) -> None:
    """The parser looks at the strings it keeps only. Raises InvalidRequest."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(body), BYTES_PER_SLICE):
        end = start + BYTES_PER_SLICE
        num_pending = len(decoder.getstate()[0])
        try:
            decoder.decode(body[start:end], final=end >= len(body))
        except UnicodeDecodeError as error:
            position = start - num_pending + error.start
            raise InvalidRequest(f"the body is not JSON: not valid UTF-8 at byte {position}", code="invalid_json") from None
        await asyncio.sleep(0)


class _Scanner:
    """Position and open brackets of one scan. A set for an object holds its keys so far, None stands for an array."""

    def __init__(self, body: bytes, max_values: int) -> None:
        self.body = body
        self.max_values = max_values
        self.position = 0
        self.string_start = -1  # of a string longer than a slice
        self.num_values = 0
        # numbers, true, false and null are counted by the commas between them; rarely are there enough to matter
        self.count_commas = body.count(b",") >= max_values
        self.open: list[set[bytes] | None] = []
        self.top_level: set[str] = set()

    def advance(self) -> bool:
        """Handle one slice of the body; False when it is done."""
        slice_end = min(len(self.body), self.position + BYTES_PER_SLICE)
        if self.string_start >= 0:
            self._long_string(slice_end)
            return self.position < len(self.body)
        for _ in range(TOKENS_PER_SLICE):
            found = _TOKEN.match(self.body, self.position, slice_end)
            if found is None:
                self._end_of_slice(slice_end)
                break
            if self.count_commas:
                self._count(self.body.count(b",", self.position, found.start(1)))
            self.position = found.end()
            token = found[1]
            if token in b"]}":
                if self.open:
                    self.open.pop()
            elif token in b"[{":
                self._open(token)
            else:
                self._string(token)
        return self.position < len(self.body)

    def _end_of_slice(self, slice_end: int) -> None:
        """No whole token is left in the slice: only numbers and the like, or the start of a long string."""
        found = _GAP.match(self.body, self.position, slice_end)
        end = slice_end if found is None else found.end()
        if self.count_commas:
            self._count(self.body.count(b",", self.position, end))
        self.position = end
        if end < slice_end:
            self.string_start = end
            self.position = end + 1

    def _long_string(self, slice_end: int) -> None:
        # one byte more than the slice, so that an escape on its border is seen whole
        found = _IN_STRING.match(self.body, self.position, slice_end + 1)
        end = self.position if found is None else found.end()
        if self.body[end : end + 1] == b'"':
            start, self.string_start = self.string_start, -1
            self.position = end + 1
            self._string(self.body[start : end + 1])
        else:
            # the border of the slice; no progress means a string cut off after a backslash, which decode() refuses
            self.position = end if end > self.position else len(self.body)

    def _open(self, bracket: bytes) -> None:
        self._count(1)
        self.open.append(set() if bracket == b"{" else None)
        if len(self.open) > MAX_DEPTH:
            raise InvalidRequest(f"the JSON is nested deeper than {MAX_DEPTH} levels", code="invalid_json")

    def _string(self, quoted: bytes) -> None:
        """A string; when a colon follows, it is a key of the innermost object."""
        self._count(1)
        keys = self.open[-1] if self.open else None
        if keys is not None and _COLON.match(self.body, self.position):
            self._key(quoted, keys)

    def _key(self, quoted: bytes, keys: set[bytes]) -> None:
        # two spellings of one name are one name
        key = decode(quoted, str).encode() if b"\\" in quoted else quoted[1:-1]
        if key in keys:
            name = key[:64].decode(errors="replace")
            raise InvalidRequest(f"the field {name!r} is given twice", param=name, code="invalid_json")
        keys.add(key)
        if len(self.open) == 1:
            self.top_level.add(key.decode(errors="replace"))

    def _count(self, num_values: int) -> None:
        self.num_values += num_values
        if self.num_values > self.max_values:
            raise InvalidRequest(f"the JSON has more than {self.max_values} values", code="invalid_json")


@functools.cache
def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of `kind`, built once: the first one of a large struct takes milliseconds."""
    return msgspec.json.Decoder(kind)


def decode(body: bytes, kind: type[_T]) -> _T:
    """Parse `body` as `kind`. Raises InvalidRequest that names the field, or the byte where the JSON breaks off."""
    try:
        decoded: _T = decoder_of(cast(Any, kind)).decode(body)
        return decoded
    except msgspec.ValidationError as error:
        where = _WHERE.search(str(error))
        field = cut(where.group(1)) if where else ""
        reason = cut(_WHERE.sub("", str(error)), MAX_REASON)
        if field in RANGES and reason.endswith("out of range"):
            reason += f", it must be in {RANGES[field]}"
        if not field:
            raise InvalidRequest(f"the body is not as expected: {reason}", code="invalid_type") from None
        raise InvalidRequest(f"{field}: {reason}", param=field, code="invalid_type") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not valid UTF-8 at byte {error.start}", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("the JSON is nested too deep", code="invalid_json") from None
