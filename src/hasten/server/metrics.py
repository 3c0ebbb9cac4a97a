"""`/metrics`: vLLM's names behind our prefix (or theirs), so that existing dashboards work; and the step time.

Source of names and buckets: vLLM documentation, "Production metrics". Below vLLM's lowest bucket there are more: a small
model on a CPU is done where a large one on a GPU begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hasten.engine.ledger import QUEUE
from hasten.request import FinishReason, Ledger
from hasten.server.client import EngineClient

_TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_ITL_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_E2E_BUCKETS_S = (
    0.01, 0.03, 0.1,
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
    7680.0,
)  # fmt: skip
_TOKEN_BUCKETS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))

# vLLM's words for why a request ended
_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "error",
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters and histograms of one server, and the engine's own numbers read when scraped."""

    def __init__(self, client: EngineClient, model_name: str, names: Literal["hasten", "vllm"] = "hasten") -> None:
        self._registry = CollectorRegistry()
        self._label = model_name
        prefix = "vllm:" if names == "vllm" else "hasten_"
        self._registry.register(_EngineCollector(client, model_name, prefix))
        self._ttft = self._histogram(prefix, "time_to_first_token_seconds", "Arrival to first token.", _TTFT_BUCKETS_S)
        self._itl = self._histogram(prefix, "inter_token_latency_seconds", "Gap between two tokens.", _ITL_BUCKETS_S)
        self._old_itl = self._histogram(
            prefix, "time_per_output_token_seconds", "inter_token_latency_seconds under its older name.", _ITL_BUCKETS_S
        )
        self._tpot = self._histogram(
            prefix, "request_time_per_output_token_seconds", "(last - first) / (n - 1) of a request.", _ITL_BUCKETS_S
        )
        self._e2e = self._histogram(prefix, "e2e_request_latency_seconds", "Arrival to last token.", _E2E_BUCKETS_S)
        self._spans = {
            name: self._histogram(prefix, f"request_{name}_time_seconds", f"{text}.", _E2E_BUCKETS_S)
            for name, text in (
                ("queue", "Arrival to the first step"),
                ("prefill", "First step to first token"),
                ("decode", "First token to last token"),
                ("inference", "First step to last token"),
            )
        }
        self._prompt = self._histogram(prefix, "request_prompt_tokens", "Prompt tokens of a request.", _TOKEN_BUCKETS)
        self._output = self._histogram(prefix, "request_generation_tokens", "Tokens of an answer.", _TOKEN_BUCKETS)
        self._max_tokens = self._histogram(prefix, "request_params_max_tokens", "max_tokens of a request.", _TOKEN_BUCKETS)
        self._n = self._histogram(prefix, "request_params_n", "n of a request.", (1, 2, 5, 10, 20))
        success = Counter(
            prefix + "request_success",
            "Finished requests by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._success = {reason: success.labels(model_name, word) for reason, word in _REASONS.items()}

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def next_tokens(self, seconds: float, num_tokens: int) -> None:
        """`num_tokens` came together, `seconds` after the ones before."""
        for _ in range(num_tokens):
            self._itl.observe(seconds / num_tokens)
            self._old_itl.observe(seconds / num_tokens)

    def accepted(self, n: int, max_tokens: int) -> None:
        """An HTTP request's parameters, once the engine has it."""
        self._n.observe(n)
        self._max_tokens.observe(max_tokens)

    def finished(
        self, reason: FinishReason, *, e2e_s: float, ledger: Ledger | None, num_prompt_tokens: int, num_tokens: int
    ) -> None:
        """A choice ended, however it did. `ledger` is the engine's, None where it could not say."""
        self._success[reason].inc()
        self._e2e.observe(e2e_s)
        self._prompt.observe(num_prompt_tokens)
        self._output.observe(num_tokens)
        if ledger is None:
            return
        if ledger.tpot_ms is not None:
            self._tpot.observe(ledger.tpot_ms / 1e3)
        # what follows the queue is inference, a preemption included, as vLLM counts it
        queue_ms = sum(part.ms for part in ledger.parts if part.name == QUEUE)
        self._spans["queue"].observe(queue_ms / 1e3)
        if ledger.ttft_ms is not None:
            self._spans["prefill"].observe((ledger.ttft_ms - queue_ms) / 1e3)
            self._spans["decode"].observe((ledger.wall_ms - ledger.ttft_ms) / 1e3)
            self._spans["inference"].observe((ledger.wall_ms - queue_ms) / 1e3)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._registry)

    def _histogram(self, prefix: str, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(prefix + name, text, ["model_name"], registry=self._registry, buckets=buckets)
        return histogram.labels(self._label)


class _EngineCollector(Collector):
    """The engine's counters, as they are when asked."""

    def __init__(self, client: EngineClient, model_name: str, prefix: str) -> None:
        self._client = client
        self._label = [model_name]
        self._prefix = prefix

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        stats = self._client.stats()
        used = 1.0 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0
        gauges = (
            ("num_requests_running", "Requests in the running batch.", stats.num_running),
            ("num_requests_waiting", "Requests in the queue.", stats.num_waiting),
            ("kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", used),
            ("gpu_cache_usage_perc", "The same under its older name.", used),
        )
        counters = (
            ("prompt_tokens", "Prompt tokens computed.", stats.num_prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.num_generated_tokens),
            ("num_preemptions", "Times a request lost its blocks.", stats.num_preemptions),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(self._prefix + name, text, labels=["model_name"])
            gauge.add_metric(self._label, value)
            yield gauge
        for name, text, value in counters:
            counter = CounterMetricFamily(self._prefix + name, text, labels=["model_name"])
            counter.add_metric(self._label, value)
            yield counter
        steps = SummaryMetricFamily(self._prefix + "step_seconds", "Time of engine steps.", labels=["model_name"])
        steps.add_metric(self._label, count_value=stats.num_steps, sum_value=stats.step_ms_sum / 1e3)
        yield steps
