"""What is asked: plain prompts, shared prefixes, documents, conversations; endless, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hasten.bench.lengths import Lengths
from hasten.bench.text import Count, TextMaker
from hasten.bench.trace import Job, TraceRequest
from hasten.errors import UsageError

WorkloadKind = Literal["plain", "prefix", "rag", "chat"]
Api = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Lengths are tokens. For `chat` the input length is that of each new message."""

    kind: WorkloadKind
    input_tokens: Lengths
    output_tokens: Lengths
    seed: int = 0
    api: Api = "chat"
    prefix_tokens: int = 512
    num_prefixes: int = 1
    num_documents: int = 50
    document_tokens: int = 200
    documents_per_request: int = 4
    turns: Lengths | None = None
    think_s: float = 0.0
    count: Count | None = None  # tokens of the whole prompt for a text, template included; None: of the text alone
    shortest: int = 1  # tokens of the shortest whole prompt; shorter draws of a spread are made that long


def describe_workload(options: WorkloadOptions) -> str:
    """One line for the report."""
    least = f" (at least {options.shortest}: the template)" if options.shortest > 1 and options.kind == "plain" else ""
    lengths = f"input {options.input_tokens.text}{least}, output {options.output_tokens.text} tokens"
    base = f"{options.kind}: {lengths}, seed {options.seed}"
    match options.kind:
        case "prefix":
            return f"{base}; {options.num_prefixes} shared prefixes of {options.prefix_tokens} tokens"
        case "rag":
            return (
                f"{base}; {options.documents_per_request} of {options.num_documents} documents of {options.document_tokens} "
                "tokens, popular ones more often (Zipf)"
            )
        case "chat":
            turns = options.turns.text if options.turns else "4"
            return f"{base}; conversations of {turns} turns, {options.think_s:g} s between them"
        case _:
            return base


def make_jobs(options: WorkloadOptions, maker: TextMaker) -> Iterator[Job]:
    """Endless jobs. Raises UsageError for an unknown kind."""
    makers = {"plain": _plain, "prefix": _prefix, "rag": _rag, "chat": _chat}
    if options.kind not in makers:
        raise UsageError(f"workload {options.kind!r} is not known; known: {', '.join(get_args(WorkloadKind))}")
    if options.kind == "chat" and options.api != "chat":
        raise UsageError("conversations need the chat API: leave --api at chat")
    make = makers[options.kind](options, maker)
    index = 0
    while True:
        # every job has numbers of its own, so that job 7 does not depend on how jobs 0 to 6 were drawn
        yield make(index, random.Random(f"job:{options.seed}:{index}"))
        index += 1


def _request(options: WorkloadOptions, name: str, rng: random.Random, content: str, total: int, **more: Any) -> TraceRequest:
    messages = [{"role": "user", "content": content}]
    system = more.pop("system", None)
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    prompt: dict[str, Any] = {"messages": messages}
    if options.api == "completions":
        prompt = {"prompt": f"{system}\n\n{content}" if system is not None else content}
    return TraceRequest(id=name, max_tokens=options.output_tokens.draw(rng), num_prompt_tokens=total, **prompt, **more)


def _plain(options: WorkloadOptions, maker: TextMaker) -> Any:
    def make(index: int, rng: random.Random) -> Job:
        total = options.input_tokens.draw(rng)
        if options.input_tokens.kind != "fixed":
            total = max(total, options.shortest)
        text = maker.exact(f"plain:{index}", total, count=options.count)
        return Job([_request(options, f"plain-{index}", rng, text, total)])

    return make


def _prefix(options: WorkloadOptions, maker: TextMaker) -> Any:
    """One user message: a shared beginning of exactly prefix_tokens, then the request's own input_tokens."""
    prefixes = [maker.exact(f"prefix:{number}", options.prefix_tokens) for number in range(options.num_prefixes)]

    def make(index: int, rng: random.Random) -> Job:
        total = options.prefix_tokens + options.input_tokens.draw(rng)
        start = prefixes[rng.randrange(len(prefixes))]
        text = maker.exact(f"prefixed:{index}", total, prefix=start, count=options.count)
        return Job([_request(options, f"prefix-{index}", rng, text, total)])

    return make


def _rag(options: WorkloadOptions, maker: TextMaker) -> Any:
    """Documents of a fixed pool, drawn by popularity 1/rank and put in order of rank, and a question of input_tokens."""
    pool = [maker.exact(f"document:{number}", options.document_tokens) for number in range(options.num_documents)]
    weights = [1.0 / rank for rank in range(1, len(pool) + 1)]
    wanted = min(options.documents_per_request, len(pool))

    def make(index: int, rng: random.Random) -> Job:
        chosen: set[int] = set()
        while len(chosen) < wanted:
            chosen.update(rng.choices(range(len(pool)), weights, k=1))
        asked = options.input_tokens.draw(rng)
        question = maker.question(f"question:{index}")
        text = maker.exact(f"rag:{index}", asked, prefix=question) if asked >= 30 else question
        request = _request(options, f"rag-{index}", rng, text, 0, documents=[pool[number] for number in sorted(chosen)])
        request.num_prompt_tokens = None  # how documents are laid out is the server's business
        return Job([request])

    return make


def _chat(options: WorkloadOptions, maker: TextMaker) -> Any:
    def make(index: int, rng: random.Random) -> Job:
        num_turns = options.turns.draw(rng) if options.turns else 4
        turns = []
        for turn in range(num_turns):
            text = maker.exact(f"chat:{index}:{turn}", options.input_tokens.draw(rng))
            request = _request(options, f"chat-{index}-{turn}", rng, text, 0, session=f"chat-{index}")
            request.num_prompt_tokens = None  # the answers before it are part of the prompt
            turns.append(request)
        return Job(turns, carry_answers=True, think_s=options.think_s)

    return make
