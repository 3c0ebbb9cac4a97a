"""From options to a run that is ready to go: the server's model, lengths in tokens, prompts or a trace."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from hasten.bench.client import ClientOptions
from hasten.bench.connection import Endpoint, parse_endpoint
from hasten.bench.lengths import parse_lengths
from hasten.bench.options import BenchOptions
from hasten.bench.runner import Limits
from hasten.bench.text import Count, TextMaker
from hasten.bench.tokens import LocalCounter, ServerCounter, TokenCounter, WordCounter
from hasten.bench.trace import Job, jobs_of_trace, read_trace
from hasten.bench.workload import WorkloadOptions, describe_workload, make_jobs
from hasten.errors import UsageError

DEFAULT_REQUESTS = 100
Progress = Callable[[int, int], None]  # done, total


@dataclass(slots=True)
class Plan:
    """A run that is ready to go: everything that takes time has been done."""

    endpoint: Endpoint
    client: ClientOptions
    jobs: list[Job]
    limits: Limits
    counter: TokenCounter | None
    workload: str
    load: dict[str, Any]
    repeats: bool  # jobs start again when they are used up
    offsets: list[float] | None = None  # of a trace that has times
    notes: list[str] = field(default_factory=list)


def base_url(endpoint: Endpoint) -> str:
    return f"{'https' if endpoint.tls else 'http'}://{endpoint.host_header}{endpoint.base_path}"


def find_model(endpoint: Endpoint, options: BenchOptions) -> str:
    """The model to ask for. Raises UsageError when the server does not say and the user neither."""
    if options.model is not None:
        return options.model
    url = f"{base_url(endpoint)}/v1/models"
    try:
        answer = httpx.get(url, headers=_headers(options), timeout=30.0, trust_env=False)
        models = [entry["id"] for entry in answer.json()["data"]]
    except httpx.HTTPError as error:
        raise UsageError(f"cannot reach {url}: {error}") from None
    except (ValueError, KeyError, TypeError):
        models = []
    if not models:
        raise UsageError(f"{url} lists no model (HTTP {answer.status_code}): name one with --model")
    return str(models[0])


def _headers(options: BenchOptions) -> dict[str, str]:
    headers = {name.strip(): value.strip() for name, _, value in (text.partition(":") for text in options.header)}
    return headers | ({"Authorization": f"Bearer {options.api_key}"} if options.api_key else {})


def make_plan(url: str, options: BenchOptions, progress: Progress = lambda done, total: None) -> Plan:
    """Find the model, count tokens, make or read the prompts. Raises UsageError, BadFile."""
    options.check()
    endpoint = parse_endpoint(url)
    model = find_model(endpoint, options)
    client = ClientOptions(
        model=model,
        api_key=options.api_key,
        timeout_s=options.timeout_s,
        include_usage=options.usage == "on",
        keep_text=True,
        documents_field=options.documents_field,
        params=_body_params(options),
        headers=tuple((name, value) for name, value in _headers(options).items() if name != "Authorization"),
    )
    if options.trace is not None:
        return _trace_plan(endpoint, client, options)
    counter = make_counter(endpoint, model, options)
    try:
        return _made_up_plan(endpoint, client, counter, options, progress)
    finally:
        counter.close()


def _made_up_plan(
    endpoint: Endpoint, client: ClientOptions, counter: TokenCounter, options: BenchOptions, progress: Progress
) -> Plan:
    """Make the prompts."""
    chat = options.api == "chat"
    notes = [f"lengths counted by {counter.name}"]
    shortest = counter.count_prompt("a", chat=chat)
    count = partial(_count_whole, counter, chat) if shortest is not None else None
    if count is None and not isinstance(counter, WordCounter):
        added = template_tokens(endpoint, client, counter)
        if added is None:
            notes.append("what the server's template adds to a prompt is not known: prompts are longer by that")
        else:
            notes.append(f"the server's template adds {added} tokens to a message, by its own count")
            count, shortest = partial(_count_with, counter, added), counter.count("a") + added
    workload = _workload_options(options, count, shortest or 1)
    limits = Limits(_num_requests(options), options.duration_s, _num_warmup(options))
    wanted, of_jobs = _num_prompts(options, limits)
    made = make_jobs(workload, TextMaker(counter, seed=options.seed))
    jobs = _take(made, min(wanted, 100_000) + limits.num_warmup, progress, of_jobs=of_jobs)
    repeats = limits.max_requests is None
    return Plan(endpoint, client, jobs, limits, counter, describe_workload(workload), _load(options), repeats, notes=notes)


def _num_prompts(options: BenchOptions, limits: Limits) -> tuple[int, bool]:
    """How many to make, and whether that is conversations (as those of a rate are) rather than requests."""
    if limits.max_requests is not None:
        return limits.max_requests, False
    if options.rate is None:
        return options.prompts, False
    expected = options.rate * (options.duration_s or 0)
    # four standard deviations of a Poisson count (bursts: of whole bursts): else half of all runs repeat their first prompts
    size = options.burst_size if options.arrivals == "bursts" else 1
    return math.ceil(expected + 4 * math.sqrt(expected * size)) + size, options.workload == "chat"


def template_tokens(endpoint: Endpoint, client: ClientOptions, counter: TokenCounter) -> int | None:
    """Tokens that the server puts around a user message, by what it counts for two short requests; None: it does not say."""
    headers = dict(client.headers) | ({"Authorization": f"Bearer {client.api_key}"} if client.api_key else {})
    added = set()
    for text in ("a", "one two three"):
        body = {"model": client.model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        try:
            url = f"{base_url(endpoint)}/v1/chat/completions"
            answer = httpx.post(url, json=body, headers=headers, timeout=client.timeout_s, trust_env=False)
            added.add(int(answer.json()["usage"]["prompt_tokens"]) - counter.count(text))
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
    # another tokenizer than the server's gives two answers, or a nonsensical one
    return added.pop() if len(added) == 1 and min(added) >= 0 else None


def make_counter(endpoint: Endpoint, model: str, options: BenchOptions) -> TokenCounter:
    """Raises UsageError, BadFile."""
    if options.tokenizer is not None:
        return LocalCounter(Path(options.tokenizer))
    if options.approximate_lengths:
        return WordCounter()
    return ServerCounter(base_url(endpoint), model, headers=_headers(options))


def _body_params(options: BenchOptions) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if options.temperature is not None:
        params["temperature"] = options.temperature
    if options.ignore_eos:
        params["ignore_eos"] = True
    if options.params is not None:
        try:
            more = json.loads(options.params)
        except ValueError as error:
            raise UsageError(f"--params is no JSON: {error}") from None
        if not isinstance(more, dict):
            raise UsageError("--params must be a JSON object")
        params.update(more)
    return params


def _count_whole(counter: TokenCounter, chat: bool, text: str) -> int:
    count = counter.count_prompt(text, chat=chat)
    if count is None:
        raise UsageError(f"{counter.name} stopped answering while prompts were made")
    return count


def _count_with(counter: TokenCounter, added: int, text: str) -> int:
    return counter.count(text) + added


def _workload_options(options: BenchOptions, count: Count | None, shortest: int) -> WorkloadOptions:
    return WorkloadOptions(
        kind=options.workload,
        input_tokens=parse_lengths(options.input_tokens),
        output_tokens=parse_lengths(options.output_tokens),
        seed=options.seed,
        api=options.api,
        prefix_tokens=options.prefix_tokens,
        num_prefixes=options.prefixes,
        num_documents=options.documents,
        document_tokens=options.document_tokens,
        documents_per_request=options.documents_per_request,
        turns=parse_lengths(options.turns),
        think_s=options.think_s,
        count=count,
        shortest=shortest,
    )


def _num_requests(options: BenchOptions) -> int | None:
    if options.requests is None and options.duration_s is None:
        return DEFAULT_REQUESTS
    return options.requests


def _num_warmup(options: BenchOptions) -> int:
    if options.warmup is not None:
        return options.warmup
    return options.concurrency if options.rate is None else max(1, round(options.rate))


def _load(options: BenchOptions) -> dict[str, Any]:
    if options.rate is None:
        return {"kind": "closed loop", "value": options.concurrency, "text": f"closed loop, {options.concurrency} users"}
    bursts = f" of {options.burst_size}" if options.arrivals == "bursts" else ""
    what = "conversations" if options.workload == "chat" else "requests"
    text = f"open loop, {options.rate:g} {what}/s, {options.arrivals}{bursts}"
    return {"kind": "open loop", "value": options.rate, "arrivals": options.arrivals, "text": text}


def _take(jobs: Iterator[Job], wanted: int, progress: Progress, *, of_jobs: bool) -> list[Job]:
    """So many jobs, or jobs that hold at least so many requests."""
    taken, count = [], 0
    while count < wanted:
        job = next(jobs)
        taken.append(job)
        count += 1 if of_jobs else len(job.turns)
        progress(min(count, wanted), wanted)
    return taken


def _trace_plan(endpoint: Endpoint, client: ClientOptions, options: BenchOptions) -> Plan:
    requests = read_trace(Path(options.trace or ""))
    timed = requests[0].t is not None
    first_t = requests[0].t or 0.0
    if timed:
        for request in requests:
            request.t = ((request.t or 0.0) - first_t) / options.speed
    jobs = jobs_of_trace(requests)
    offsets = [job.turns[0].t or 0.0 for job in jobs] if timed else None
    limits = Limits(options.requests, options.duration_s, options.warmup or 0)
    how = (
        f"at its own times, {options.speed:g} × speed"
        if timed
        else f"closed loop, {options.concurrency} users (it has no times)"
    )
    load = {"kind": "trace", "value": options.speed if timed else options.concurrency, "text": f"trace {how}"}
    text = f"trace {Path(options.trace or '').name}: {len(requests)} requests in {len(jobs)} sessions"
    counter = LocalCounter(Path(options.tokenizer)) if options.tokenizer else None
    return Plan(endpoint, client, jobs, limits, counter, text, load, repeats=False, offsets=offsets)
