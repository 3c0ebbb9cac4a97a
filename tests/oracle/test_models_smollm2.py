"""The demo model on both executors against transformers on the same weights, dequantized to float32 (golden file)."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from hasten.engine.executor import Executor
from hasten.models.llama import gguf_names
from hasten.quant import FORMATS
from hasten.weights import open_checkpoint
from hasten.weights.gguf import GgufFile
from hasten.weights.gguf_cursor import StringArray
from tests.support.compare import assert_close
from tests.support.golden import EXECUTORS, check_greedy, executor, golden, prompt_logprobs

NUM_PROMPTS = 20
# reference: float32 sums in another order, 4e-5 found. native: two-plane int8 activations and bf16 K and V, 0.11 found among
# the 20 best tokens (most of it at the unlikely ones)
ATOL = {"reference": 2e-4, "native": 0.2}


def check_logits(executor: Executor, index: int, *, atol: float) -> None:
    """Log-probabilities of the golden file's best tokens at every position of a prompt."""
    answers = golden("smollm2")
    found = prompt_logprobs(executor, answers[f"{index}.prompt"].tolist())
    top_ids = answers[f"{index}.top_ids"]
    top_logprobs = answers[f"{index}.top_logits"] - answers[f"{index}.logsumexp"][:, None]
    assert len(found) == len(top_ids)
    actual, expected = [], []
    for entry, ids, logprobs in zip(found, top_ids, top_logprobs, strict=True):
        known = dict(zip(ids.tolist(), logprobs.tolist(), strict=True))
        pairs = [(logprob, known[token_id]) for token_id, logprob in entry.top if token_id in known]
        # the golden file holds 32 best, a request gets 20: near the end of the list the order may differ a little
        assert len(pairs) >= len(entry.top) - 2
        assert entry.top[0][0] in ids[:2]
        actual += [pair[0] for pair in pairs]
        expected += [pair[1] for pair in pairs]
    assert_close(actual, expected, atol=atol)


@pytest.mark.parametrize("kind", EXECUTORS)
def test_logits_of_a_few_prompts(smollm2_path, kind):
    running = executor(kind, open_checkpoint(smollm2_path))
    for index in (10,) if kind == "reference" else (0, 10, 13):
        check_logits(running, index, atol=ATOL[kind])


@pytest.mark.full
@pytest.mark.parametrize("kind", EXECUTORS)
def test_logits_of_all_prompts(smollm2_path, kind):
    running = executor(kind, open_checkpoint(smollm2_path))
    for index in range(NUM_PROMPTS):
        check_logits(running, index, atol=ATOL[kind])


@pytest.mark.full
def test_f32_file_is_greedy_identical_to_transformers(smollm2_path, tmp_path):
    """Native: 20 prompts in one batch, 64 tokens, the weights stored as float32 (540 MB). K and V are bf16: see ATOL."""
    path = dequantized_copy(smollm2_path, tmp_path / "smollm2-f32.gguf")
    answers = golden("smollm2")
    prompts = [answers[f"{index}.prompt"].tolist() for index in range(NUM_PROMPTS)]
    check_greedy(executor("native", open_checkpoint(path)), prompts, answers, tie=0.1, compared=0.7)
    path.unlink()


@pytest.mark.full
def test_reference_is_greedy_identical_to_transformers(smollm2_path):
    """Each golden token is the best one after the golden tokens before it, up to ties of 1e-4: so the answers are equal.

    One pass over prompt and answer: token by token the reference would read its 540 MB of weights 1,280 times.
    """
    running, answers = executor("reference", open_checkpoint(smollm2_path)), golden("smollm2")
    for index in range(NUM_PROMPTS):
        prompt, tokens = answers[f"{index}.prompt"].tolist(), answers["tokens"][index].tolist()
        found = prompt_logprobs(running, prompt + tokens)[len(prompt) - 1 :]
        for entry, token_id, gap in zip(found, tokens, answers["gaps"][index], strict=False):
            assert entry.top[0][0] == token_id or gap < 1e-4, f"prompt {index}"


def dequantized_copy(source: Path, target: Path) -> Path:
    """`source` with every tensor as float32, by the gguf package."""
    checkpoint = open_checkpoint(source)
    writer = gguf.GGUFWriter(target, "llama")
    try:
        copy_keys(source, writer)
        for name, (file_name, _) in gguf_names(checkpoint.spec).items():
            raw = checkpoint.tensor(name)
            writer.add_tensor(file_name, FORMATS[raw.format].dequantize(raw.data).reshape(raw.shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return target


def copy_keys(source: Path, writer: gguf.GGUFWriter) -> None:
    kinds = gguf.GGUFValueType
    for key, value in GgufFile(source).metadata.items():
        if isinstance(value, StringArray):
            writer.add_key_value(key, list(value.decode()), kinds.ARRAY, sub_type=kinds.STRING)
        elif isinstance(value, np.ndarray):
            writer.add_key_value(key, value.tolist(), kinds.ARRAY, sub_type=kinds.INT32)
        elif key.startswith(("llama.", "tokenizer.")):
            kind = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}[type(value)]
            writer.add_key_value(key, value, kind)
