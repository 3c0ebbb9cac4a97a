"""The scan of a body against the standard library's parser, on random JSON and across slice borders."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.errors import InvalidRequest
from hasten.server import json_body
from hasten.server.json_body import scan

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


def names_of(body: bytes, max_values: int = json_body.MAX_VALUES) -> frozenset[str]:
    """`scan` without a loop: it only ever gives way."""
    scanning = scan(body, max_values=max_values)
    while True:
        try:
            scanning.send(None)
        except StopIteration as done:
            names: frozenset[str] = done.value
            return names


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text(max_size=8).filter(lambda key: key.isprintable()), VALUES, max_size=5), st.booleans())
def test_top_level_names_are_those_of_the_standard_parser(body: dict[str, Any], ascii_only: bool) -> None:
    assert names_of(json.dumps(body, ensure_ascii=ascii_only).encode()) == frozenset(body)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", '"', "\\", "é", "a\\"]), VALUES), min_size=2, max_size=5), st.booleans())
def test_duplicates_are_found_at_any_depth(pairs: list[tuple[str, Any]], deep: bool) -> None:
    text = "{" + ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in pairs) + "}"
    body = ('{"x":[1,{"y":' + text + "}]}" if deep else text).encode()
    if len({key for key, _ in pairs}) < len(pairs):
        with pytest.raises(InvalidRequest, match="twice"):
            names_of(body)
    else:
        names_of(body)


@pytest.mark.parametrize("slice_bytes", [2, 3, 5, 7, 64])
def test_slices_may_end_anywhere(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    monkeypatch.setattr(json_body, "BYTES_PER_SLICE", slice_bytes)
    body = {'a"b': 'x\\\\"' * 9, "c\\": ['}"{', {"d": "\\"}], "e": {"a": 1, "b\n": [[], {}]}}
    assert names_of(json.dumps(body).encode()) == frozenset(body)
    with pytest.raises(InvalidRequest, match="'e' is given twice"):
        names_of(json.dumps(body).encode()[:-1] + b',"e":1}')


@pytest.mark.parametrize("tail", [b'"', b'"\\', b'"abc\\', b'{"a', b"[[", b"}}]]", b'{"a":1}}', b'"a":', b"\\", b"," * 9])
def test_malformed_bodies_end_the_scan(tail: bytes) -> None:
    names_of(tail)
    names_of(b'{"k":' + tail)


def test_depth_and_values_are_bounded() -> None:
    names_of(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}")
    with pytest.raises(InvalidRequest, match="deeper than 64"):
        names_of(b'{"a":' + b"[" * 64 + b"]" * 64 + b"}")
    for many in (b"1,", b'"",', b"{},", b"[],"):
        names_of(b"[" + many * 900 + b"1]", max_values=1000)
        with pytest.raises(InvalidRequest, match="1000 values"):
            names_of(b"[" + many * 1000 + b"1]", max_values=1000)


def test_the_loop_runs_between_slices() -> None:
    body = json.dumps({"a": ["x"] * 100_000, "b": '"\\' * 200_000}).encode()

    async def main() -> int:
        rounds = 0
        task = asyncio.create_task(scan(body))
        while not task.done():
            await asyncio.sleep(0)
            rounds += 1
        return rounds

    assert asyncio.run(main()) > 50
