"""Everything a bench run can be told. The command line and the docs are made from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hasten.bench.arrivals import Arrivals
from hasten.bench.lengths import parse_lengths
from hasten.bench.workload import Api, WorkloadKind
from hasten.config import option
from hasten.errors import UsageError


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One load against one server."""

    model: str | None = option(None, "model name to ask for; auto: the first the server lists")
    api: Api = option("chat", "endpoint: chat or completions")
    concurrency: int = option(1, "closed loop: users who each wait for an answer before they ask again")
    rate: float | None = option(
        None, "open loop: requests (chat: conversations) per second, whether or not earlier ones are answered; auto: off"
    )
    arrivals: Arrivals = option("poisson", "open loop: poisson (independent users), constant, or bursts")
    burst_size: int = option(8, "requests that arrive at one instant with --arrivals bursts")
    trace: str | None = option(None, "JSONL file of requests to send instead of made-up ones; auto: none")
    speed: float = option(1.0, "replay the times of a trace this much faster")
    sweep: Literal["off", "concurrency", "rate"] = option("off", "raise the load step by step until the server is saturated")
    sweep_max: float | None = option(None, "last step of a sweep; auto: 256 users, 1000 requests per second")
    requests: int | None = option(None, "measured requests; auto: 100, or no limit with --duration-s, or the whole trace")
    duration_s: float | None = option(None, "stop sending after so many seconds; auto: no limit")
    warmup: int | None = option(
        None, "requests sent first and not measured; auto: one per user, one second of a rate, 0 of a trace"
    )
    max_connections: int = option(4096, "most connections at a time; a request that waits for one is late by that")
    workload: WorkloadKind = option("plain", "plain, prefix (shared beginnings), rag (documents) or chat (conversations)")
    input_tokens: str = option("256", "prompt length: N, uniform:LOW:HIGH, normal:, lognormal:MEDIAN:SIGMA[:MAX], exponential:")
    output_tokens: str = option("128", "most answer tokens, in the same forms")
    prefix_tokens: int = option(512, "prefix: length of the shared beginning")
    prefixes: int = option(1, "prefix: number of different beginnings")
    documents: int = option(50, "rag: documents to draw from")
    document_tokens: int = option(200, "rag: length of a document")
    documents_per_request: int = option(4, "rag: documents in one request")
    documents_field: bool = option(False, "send documents in the hasten field of the request, not inside the prompt")
    turns: str = option("4", "chat: questions in a conversation, in the forms of --input-tokens")
    think_s: float = option(0.0, "chat: seconds between an answer and the next question")
    seed: int = option(0, "decides every prompt, length and arrival")
    prompts: int = option(1000, "most different prompts made when only --duration-s limits the run; then they repeat")
    tokenizer: str | None = option(None, "tokenizer.json, or its folder, to count lengths with; auto: the server's /tokenize")
    approximate_lengths: bool = option(False, "take a word for a token when the server has no /tokenize")
    temperature: float | None = option(0.0, "sampling temperature; auto: do not send one")
    ignore_eos: bool = option(False, "ask for answers of full length (hasten, vLLM, SGLang, llama-server)")
    params: str | None = option(None, "JSON object merged into every request body; auto: none")
    usage: Literal["on", "off"] = option("on", "ask the server to count tokens (stream_options.include_usage)")
    api_key: str | None = option(None, "sent as a Bearer token; auto: none")
    header: tuple[str, ...] = option((), "extra header, NAME: VALUE; repeatable")
    timeout_s: float = option(600.0, "seconds after which a request counts as failed")
    ttft_ms: float | None = option(
        None, "target for the time to first token; goodput counts answers that meet all targets; auto: none"
    )
    tpot_ms: float | None = option(None, "target for the time per output token; auto: none")
    e2e_ms: float | None = option(None, "target for the whole answer; auto: none")
    price_per_hour: float | None = option(
        None, "what the server's machine costs, for the price of a million tokens; auto: none"
    )
    currency: str = option("USD", "word for the price's currency")

    def check(self) -> None:
        """Raises UsageError naming the option."""
        for name in ("concurrency", "requests", "burst_size", "max_connections", "prompts", "documents", "prefixes"):
            _at_least(name, getattr(self, name), 1)
        for name in ("document_tokens", "prefix_tokens", "documents_per_request"):
            _at_least(name, getattr(self, name), 1)
        for name in ("warmup", "think_s"):
            _at_least(name, getattr(self, name), 0)
        for name in ("rate", "duration_s", "speed", "timeout_s", "ttft_ms", "tpot_ms", "e2e_ms", "price_per_hour", "sweep_max"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"--{name.replace('_', '-')} is {value}, it must be positive")
        first = self.rate or 1.0 if self.sweep == "rate" else 1.0
        if self.sweep != "off" and self.sweep_max is not None and self.sweep_max < first:
            raise UsageError(f"--sweep-max is {self.sweep_max:g}, below the first step of {first:g}")
        if self.trace is not None and (self.rate is not None or self.sweep != "off"):
            raise UsageError("--trace has its own load: leave out --rate and --sweep")
        for text in (self.input_tokens, self.output_tokens, self.turns):
            parse_lengths(text)
        for text in self.header:
            if ":" not in text:
                raise UsageError(f"--header {text!r} has no colon: write NAME: VALUE")


def _at_least(name: str, value: float | None, least: int) -> None:
    if value is not None and not least <= value < float("inf"):
        raise UsageError(f"--{name.replace('_', '-')} is {value}, it must be {least} or more")
