"""Counting tokens with servers that answer as the real ones do, and as many prompts as a run needs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from hasten.bench.arrivals import arrival_offsets
from hasten.bench.client import ClientOptions
from hasten.bench.connection import parse_endpoint
from hasten.bench.options import BenchOptions
from hasten.bench.plan import make_plan, template_tokens
from hasten.bench.tokens import LocalCounter, ServerCounter
from tests.support.fake_tokenizer import NUM_TEMPLATE, make_tokenizer, serving

_TEXTS = ("one", "one two three", "under  two   blanks", "a\n\n    line", "of café", "  ")


def test_tgi_counts_the_text_without_its_start_token(tmp_path: Path) -> None:
    """Also where a token's span is empty because it is blanks."""
    tokenizer = make_tokenizer(tmp_path)
    with serving(tokenizer) as (url, _):
        counter = ServerCounter(url, "m")
        got = [counter.count(text) for text in _TEXTS]
        whole = [counter.count_prompt(text, chat=False) for text in _TEXTS]
        counter.close()
    assert "tgi" in counter.name
    assert got == [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in _TEXTS]
    assert whole == [count + 1 for count in got]


def test_tgi_counts_a_chat_by_its_own_endpoint(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    with serving(tokenizer) as (url, asked):
        counter = ServerCounter(url, "m")
        got = [counter.count_prompt(text, chat=True) for text in _TEXTS]
        counter.close()
    assert got == [len(tokenizer.encode(text, add_special_tokens=False).ids) + NUM_TEMPLATE for text in _TEXTS]
    assert asked[-1] == ("/chat_tokenize", {"model": "m", "messages": [{"role": "user", "content": _TEXTS[-1]}]})


@pytest.mark.parametrize("usage", [True, False])
def test_a_local_tokenizer_learns_the_template_from_the_server(tmp_path: Path, usage: bool) -> None:
    tokenizer = make_tokenizer(tmp_path)
    options = BenchOptions(model="m", tokenizer=str(tmp_path), input_tokens="uniform:20:40", requests=4, warmup=0)
    with serving(tokenizer, usage=usage) as (url, asked):
        plan = make_plan(url, options)
    requests = [job.turns[0] for job in plan.jobs]
    bare = [
        len(tokenizer.encode(request.messages[0]["content"], add_special_tokens=False).ids)
        for request in requests
        if request.messages
    ]
    added = NUM_TEMPLATE if usage else 0
    assert [count + added for count in bare] == [request.num_prompt_tokens for request in requests]
    said = f"template adds {NUM_TEMPLATE} tokens" if usage else "template adds to a prompt is not known"
    assert said in " ".join(plan.notes)
    assert {body["max_tokens"] for _, body in asked} == {1}


def test_a_tokenizer_that_is_not_the_servers_teaches_nothing(tmp_path: Path) -> None:
    class Other(LocalCounter):
        def count(self, text: str) -> int:
            return 2 * super().count(text)

    tokenizer = make_tokenizer(tmp_path)
    with serving(tokenizer) as (url, _):
        endpoint, client = parse_endpoint(url), ClientOptions(model="m")
        assert template_tokens(endpoint, client, LocalCounter(tmp_path)) == NUM_TEMPLATE
        assert template_tokens(endpoint, client, Other(tmp_path)) is None
    assert template_tokens(parse_endpoint("http://127.0.0.1:1"), client, LocalCounter(tmp_path)) is None


def _plan(**values: Any) -> Any:
    options = BenchOptions(**{"model": "m", "approximate_lengths": True, "input_tokens": "8", "warmup": 0, **values})
    return make_plan("http://127.0.0.1:1", options)


@pytest.mark.parametrize("arrivals", ["poisson", "bursts", "constant"])
def test_a_rate_has_prompts_for_all_who_arrive(arrivals: Any) -> None:
    """A prompt sent twice is answered by a prefix cache. Four standard deviations are passed by 1 run in 30,000."""
    num_made = len(_plan(rate=20.0, duration_s=5.0, arrivals=arrivals, burst_size=4).jobs)
    short = 0
    for seed in range(300):
        offsets = arrival_offsets(arrivals, 20.0, seed=seed, burst_size=4)
        short += sum(1 for _ in itertools.takewhile(lambda offset: offset < 5.0, offsets)) > num_made
    assert short <= 1
    assert num_made < 200


def test_a_rate_of_conversations_is_called_so_and_has_enough_of_them() -> None:
    plan = _plan(rate=4.0, duration_s=10.0, workload="chat", turns="3")
    assert "4 conversations/s" in plan.load["text"]
    assert len(plan.jobs) >= 40
    assert "4 requests/s" in _plan(rate=4.0, duration_s=1.0).load["text"]
