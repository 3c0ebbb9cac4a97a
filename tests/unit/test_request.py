"""Sampling parameters: what is accepted, and that a refusal names the field."""

from __future__ import annotations

import math
import pickle
import re

import pytest

from hasten.errors import InvalidRequest
from hasten.request import MAX_SEED, NEXT_STATUS, EngineRequest, FinishReason, RequestStatus, SamplingParams, TokenEvent

GOOD = [
    {},
    {"temperature": 0},
    {"temperature": 100.0},
    {"top_k": -1},
    {"top_k": 0},
    {"top_p": 1},
    {"top_p": 1e-9},
    {"min_p": 1.0},
    {"max_tokens": 0},
    {"seed": -(2**63)},
    {"seed": MAX_SEED},
    {"logprobs": 0},
    {"prompt_logprobs": 20},
    {"presence_penalty": -2},
    {"frequency_penalty": 2},
    {"repetition_penalty": 0.01},
    {"stop": ("a",) * 4},
    {"stop": ["a"]},
    {"stop_token_ids": tuple(range(128))},
    {"stop_token_ids": [0, 2**31 - 1]},
    {"logit_bias": ((5, -100.0), (6, 100))},
]
BAD = [
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", -0.1),
    ("temperature", 101),
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", None),
    ("temperature", 10**400),
    ("temperature", -(10**400)),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", True),
    ("top_k", 2**31),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("max_tokens", -1),
    ("max_tokens", 1.0),
    ("max_tokens", 2**31),
    ("seed", MAX_SEED + 1),
    ("seed", -(2**63) - 1),
    ("seed", 1.0),
    ("seed", 10**400),
    ("seed", True),
    ("seed", math.nan),
    ("logprobs", 21),
    ("logprobs", -1),
    ("logprobs", True),
    ("prompt_logprobs", 21),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", math.nan),
    ("stop", ("",)),
    ("stop", (7,)),
    ("stop", "STOP"),
    ("stop", None),
    ("stop_token_ids", tuple(range(129))),
    ("stop_token_ids", ("a",)),
    ("stop_token_ids", (1.5,)),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", ([1],)),
    ("stop_token_ids", (True,)),
    ("stop_token_ids", 7),
    ("logit_bias", ((-1, 1.0),)),
    ("logit_bias", ((1, 101.0),)),
    ("logit_bias", ((1, math.nan),)),
    ("logit_bias", {1: 1.0}),
    ("logit_bias", (1, 1.0)),
]


@pytest.mark.parametrize("fields", GOOD)
def test_good_parameters(fields: dict[str, object]) -> None:
    params = SamplingParams(**fields)  # type: ignore[arg-type]
    assert params.is_greedy == (fields.get("temperature") == 0)


@pytest.mark.parametrize(("field", "value"), BAD)
def test_bad_parameters_name_the_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert error.value.param == field
    assert field in str(error.value)


@pytest.mark.parametrize(
    ("field", "inside", "outside", "text"),
    [
        ("max_tokens", (0, 2147483647), (-1, 2147483648), "[0, 2147483647]"),
        ("temperature", (0, 100), (math.nextafter(0, -1), math.nextafter(100, 101)), "[0, 100]"),
        ("top_k", (-1, 2147483647), (-2, 2147483648), "[-1, 2147483647]"),
        ("top_p", (5e-324, 1), (0, math.nextafter(1, 2)), "(0, 1]"),
        ("min_p", (0, 1), (-5e-324, math.nextafter(1, 2)), "[0, 1]"),
        ("logprobs", (0, 20), (-1, 21), "[0, 20]"),
        ("prompt_logprobs", (0, 20), (-1, 21), "[0, 20]"),
        ("repetition_penalty", (5e-324, 100), (0, math.nextafter(100, 101)), "(0, 100]"),
        ("presence_penalty", (-2, 2), (math.nextafter(-2, -3), math.nextafter(2, 3)), "[-2, 2]"),
        ("frequency_penalty", (-2, 2), (math.nextafter(-2, -3), math.nextafter(2, 3)), "[-2, 2]"),
        ("seed", (-(2**63), 2**64 - 1), (-(2**63) - 1, 2**64), "[-9223372036854775808, 18446744073709551615]"),
    ],
)
def test_the_ends_of_every_range_and_its_words(
    field: str, inside: tuple[float, float], outside: tuple[float, float], text: str
) -> None:
    for value in inside:
        assert getattr(SamplingParams(**{field: value}), field) == value  # type: ignore[arg-type]
    for value in outside:
        with pytest.raises(InvalidRequest, match=re.escape(f"it must be in {text}")):
            SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_only_the_listed_moves_exist() -> None:
    assert set(NEXT_STATUS) == set(RequestStatus)
    assert NEXT_STATUS[RequestStatus.FINISHED] == frozenset()
    assert RequestStatus.RUNNING not in NEXT_STATUS[RequestStatus.RUNNING]
    assert RequestStatus.WAITING in NEXT_STATUS[RequestStatus.RUNNING], "preempted"


def test_what_crosses_between_server_and_engine_can_be_sent_elsewhere() -> None:
    request = EngineRequest((1, 2), SamplingParams(seed=1, max_tokens=2, stop=("x",)), (3,), 1.5, "cmpl-1")
    event = TokenEvent(7, (1,), finish_reason=FinishReason.STOP, stop_token_id=1)
    assert pickle.loads(pickle.dumps((request, event))) == (request, event)
