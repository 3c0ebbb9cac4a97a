"""The memory budget: who gets what, and refusals with numbers."""

from __future__ import annotations

import re

import pytest

from hasten.config import EngineConfig
from hasten.engine.build import dense_bytes, resolve_config
from hasten.engine.memory import MemoryPlan, budget, plan_memory, size
from hasten.errors import DoesNotFit, UsageError
from hasten.kv_store import KvLayout
from hasten.models.spec import ModelSpec, RopeSpec

MIB = 1 << 20
SPEC = ModelSpec(
    model_type="llama",
    num_layers=4,
    hidden_size=64,
    intermediate_size=128,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=100,
    max_position=4096,
    norm_eps=1e-5,
    rope=RopeSpec(dim=16, base=1e4, interleaved=True),
    tied_head=True,
)
LAYOUT = KvLayout("bf16", 4, 2, 16)
BLOCK = 4 * 2 * 2 * 32 * 16 * 2  # layers, K and V, heads, tokens, dims, bytes


def plan(budget_bytes: int, **config: object) -> MemoryPlan:
    return plan_memory(
        SPEC,
        EngineConfig(**config),  # type: ignore[arg-type]
        LAYOUT,
        budget_bytes=budget_bytes,
        weight_bytes=10 * MIB,
        scratch_bytes=2 * MIB,
    )


def test_kv_gets_what_weights_and_scratch_leave() -> None:
    result = plan(12 * MIB + 200 * BLOCK + 5)
    assert LAYOUT.block_bytes == BLOCK
    assert (result.num_blocks, result.kv_bytes, result.max_model_len) == (200, 200 * BLOCK, 4096)
    assert result.total_bytes == 12 * MIB + 200 * BLOCK
    assert result.notes == ()


def test_kv_is_capped_at_what_the_seats_can_use() -> None:
    assert plan(1 << 40, max_num_seqs=3).num_blocks == 3 * 128
    assert plan(1 << 40, max_num_seqs=3, max_model_len=100).num_blocks == 3 * 4
    assert plan(1 << 40, max_num_seqs=3, max_model_len=100).max_model_len == 100


def test_automatic_context_is_lowered_to_what_fits_and_says_so() -> None:
    result = plan(12 * MIB + 64 * BLOCK)
    assert (result.num_blocks, result.max_model_len) == (64, 2048)
    assert re.search(r"max_model_len is 2048, the model could do 4096.*--memory", result.notes[0])


def test_a_context_that_was_asked_for_is_never_lowered() -> None:
    assert plan(12 * MIB + 64 * BLOCK, max_model_len=2048).num_blocks == 64
    with pytest.raises(DoesNotFit) as error:
        plan(12 * MIB + 64 * BLOCK, max_model_len=2049)
    message = str(error.value)
    assert size(12 * MIB + 65 * BLOCK) in message
    assert "2049 tokens" in message
    assert "--memory" in message
    assert "--max-model-len" in message
    assert "--kv int8" in message


@pytest.mark.parametrize("budget_bytes", [0, 5 * MIB, 12 * MIB, 12 * MIB + 15 * BLOCK])
def test_less_than_512_tokens_is_refused_with_the_numbers(budget_bytes: int) -> None:
    with pytest.raises(DoesNotFit) as error:
        plan(budget_bytes)
    assert size(budget_bytes) in str(error.value)
    assert "weights 10.0 MiB" in str(error.value)
    assert "raise --memory" in str(error.value)
    assert plan(12 * MIB + 16 * BLOCK).max_model_len == 512


def refusal(budget_bytes: int, scratch_bytes: int, **config: object) -> str:
    with pytest.raises(DoesNotFit) as error:
        plan_memory(
            SPEC,
            EngineConfig(**config),  # type: ignore[arg-type]
            LAYOUT,
            budget_bytes=budget_bytes,
            weight_bytes=10 * MIB,
            scratch_bytes=scratch_bytes,
        )
    return str(error.value).split("; ")[1]


def test_advice_names_only_options_that_can_help() -> None:
    assert refusal(12 * MIB, 90 * MIB, threads=64, max_num_batched_tokens=512) == (
        "raise --memory, or lower --threads (64) or --max-num-batched-tokens (512): scratch grows with both"
    )
    assert refusal(12 * MIB, 90 * MIB, executor="reference") == "raise --memory, or lower --max-num-batched-tokens (512)"
    assert refusal(9 * MIB, 90 * MIB, threads=64) == "raise --memory", "the weights alone are too large"
    assert refusal(10 * MIB + 15 * BLOCK, 0) == "raise --memory, or take --kv int8"
    assert refusal(10 * MIB + 7 * BLOCK, 0) == "raise --memory", "int8 needs more than half of bf16"


@pytest.mark.parametrize("max_model_len", [0, -1, 4097])
def test_context_outside_the_models_positions_is_refused(max_model_len: int) -> None:
    with pytest.raises(UsageError, match=rf"{max_model_len}.*4096"):
        plan(1 << 40, max_model_len=max_model_len)


def test_budget_is_the_option_or_80_percent() -> None:
    assert budget(None, 1000) == 800
    assert budget("1.5MiB", 2 * MIB) == 3 * MIB // 2
    with pytest.raises(DoesNotFit, match=r"3\.0 MiB, 2\.0 MiB are free.*--memory"):
        budget("3MiB", 2 * MIB)
    with pytest.raises(UsageError, match=r"--memory.*'lots'"):
        budget("lots", 2 * MIB)


def test_plan_in_words() -> None:
    text = str(plan(12 * MIB + 64 * BLOCK))
    assert text == "13.0 MiB of 13.0 MiB: weights 10.0 MiB, scratch 2.0 MiB, KV 1.0 MiB (2048 tokens)"
    assert [size(n) for n in (512, MIB - 1024, MIB, 3 << 29)] == ["0.5 KiB", "1023.0 KiB", "1.0 MiB", "1.50 GiB"]


@pytest.mark.parametrize("field", ["max_num_seqs", "max_num_batched_tokens", "threads", "chunk"])
def test_numbers_out_of_range_are_refused_by_the_name_of_the_option(field: str) -> None:
    with pytest.raises(UsageError, match=f"--{field.replace('_', '-')} is -1"):
        resolve_config(EngineConfig(**{field: -1}))


@pytest.mark.parametrize(
    ("field", "high"), [("max_num_seqs", 4096), ("max_num_batched_tokens", 65536), ("threads", 1024), ("chunk", 65536)]
)
def test_numbers_no_machine_could_use_are_refused_with_the_range(field: str, high: int) -> None:
    resolve_config(EngineConfig(**{field: high}))
    for value in (high + 1, 1 << 31, 99_999_999_999):
        with pytest.raises(UsageError, match=f"--{field.replace('_', '-')} is {value}, it must be [01] to {high}$"):
            resolve_config(EngineConfig(**{field: value}))


def test_auto_is_resolved() -> None:
    resolved = resolve_config(EngineConfig())
    assert resolved.threads is not None
    assert resolved.threads >= 1
    assert resolved.kv == "bf16"
    assert resolve_config(EngineConfig(threads=3, kv="int8", chunk=0)) == EngineConfig(threads=3, kv="int8", chunk=0)


def test_dense_bytes_counts_every_weight() -> None:
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert dense_bytes(SPEC) == 4 * (4 * layer + 100 * 64 + 64)
