"""/metrics: what happened, why answers ended, where their time went."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hasten.config import EngineConfig, ServerConfig
from tests.server.running import RunningServer, running_server, scripted
from tests.support.toy_tokenizer import toy


def samples(server: RunningServer) -> dict[str, float]:
    """Samples by name, summed over labels."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


@pytest.mark.parametrize(("names", "prefix"), [("hasten", "hasten_"), ("vllm", "vllm:")])
def test_metrics_count_what_happened(names: Any, prefix: str) -> None:
    words = toy()
    with running_server(scripted(words), words, server_config=ServerConfig(metrics_names=names)) as server:
        for _ in range(3):
            server.complete(prompt="abcde", max_tokens=7, ignore_eos=True)
        found = samples(server)
        assert found[prefix + "prompt_tokens_total"] == 15
        assert found[prefix + "generation_tokens_total"] == 21
        assert found[prefix + "request_success_total"] == 3
        assert found[prefix + "num_requests_running"] == 0
        assert found[prefix + "num_requests_waiting"] == 0
        assert found[prefix + "num_preemptions_total"] == 0
        assert found[prefix + "kv_cache_usage_perc"] == 0
        assert found[prefix + "time_to_first_token_seconds_count"] == 3
        assert found[prefix + "inter_token_latency_seconds_count"] == 18
        assert found[prefix + "time_per_output_token_seconds_count"] == 18
        assert found[prefix + "request_time_per_output_token_seconds_count"] == 3
        assert found[prefix + "e2e_request_latency_seconds_count"] == 3
        assert found[prefix + "request_prompt_tokens_sum"] == 15
        assert found[prefix + "request_generation_tokens_sum"] == 21
        assert found[prefix + "step_seconds_count"] == len(server.executor.plans)
        assert 0 < found[prefix + "step_seconds_sum"] < 10


def test_metrics_say_where_the_time_of_requests_went() -> None:
    """The histograms add up to what the ledgers say."""
    words = toy()
    with running_server(scripted(words, step_s=0.002), words, engine_config=EngineConfig(max_num_seqs=1)) as server:
        answer = server.complete(prompt="abcde", max_tokens=5, n=2, ignore_eos=True, hasten={"explain": True}).json()
        found = samples(server)
    ledgers = answer["hasten"]["explain"]
    expected = {"queue": 0.0, "prefill": 0.0, "decode": 0.0}
    for part in (part for ledger in ledgers for part in ledger["parts"]):
        name = "queue" if part["name"] in ("parse", "tokenize") else part["name"]
        expected[name] = expected.get(name, 0.0) + part["ms"] / 1e3
    for name in ("queue", "prefill", "decode"):
        assert found[f"hasten_request_{name}_time_seconds_count"] == 2
        assert found[f"hasten_request_{name}_time_seconds_sum"] == pytest.approx(expected[name], abs=1e-6), name
    inference = found["hasten_request_inference_time_seconds_sum"]
    assert inference == pytest.approx(expected["prefill"] + expected["decode"], abs=1e-6)
    assert found["hasten_request_time_per_output_token_seconds_sum"] == pytest.approx(
        sum(ledger["tpot_ms"] for ledger in ledgers) / 1e3
    )
    assert (found["hasten_request_params_n_count"], found["hasten_request_params_n_sum"]) == (1, 2)
    assert found["hasten_request_params_max_tokens_sum"] == 5


def test_metrics_say_why_requests_ended() -> None:
    words = toy()
    with running_server(scripted(words, [list(b"abc"), list(b"abc")]), words) as server:
        server.complete(max_tokens=2)  # length
        server.complete(max_tokens=9)  # end token
        server.complete(prompt="ab", stop=[server.answer("ab", 2)[-1]], max_tokens=9)  # a stop string
        text = server.http.get("/metrics").text
        assert re.search(r'request_success_total\{finished_reason="length",model_name="toy"\} 1', text)
        assert re.search(r'request_success_total\{finished_reason="stop",model_name="toy"\} 2', text)
