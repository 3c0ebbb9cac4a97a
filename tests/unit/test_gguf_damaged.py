"""GGUF models whose keys contradict their tensors, and files damaged on the way: errors that name key or tensor."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from hasten.errors import BadFile, ModelError, Unsupported
from hasten.weights import open_checkpoint
from tests.support.toy_gguf import toy_spec, toy_tokens, write_toy_gguf

LYING: dict[str, tuple[dict[str, Any], type[ModelError], str]] = {
    "unknown architecture": ({"general.architecture": "mamba"}, Unsupported, "'mamba' is not known, hasten has: llama"),
    "no layers key": ({"llama.block_count": None}, BadFile, "key 'llama.block_count' is missing, a whole number is needed"),
    "layers a string": ({"llama.block_count": "2"}, BadFile, "'llama.block_count' must be a whole number, found '2'"),
    "0 layers": ({"llama.block_count": 0}, BadFile, "'llama.block_count' is 0"),
    "4 billion layers": (
        {"llama.block_count": 2**32 - 1},
        BadFile,
        f"'llama.block_count' is {2**32 - 1}, it must be from 1 to",
    ),
    "a layer too many": ({"llama.block_count": 3}, BadFile, r"tensor 'blk.2.attn_norm.weight' of shape \(64,\) is missing"),
    "a layer too few": ({"llama.block_count": 1}, Unsupported, r"tensor 'blk.1.attn_k.weight' \(9 in all\) is not part of"),
    "0 heads": ({"llama.attention.head_count": 0}, BadFile, "'llama.attention.head_count' is 0"),
    "heads per layer": ({"llama.attention.head_count": np.array([4, 4], np.int32)}, BadFile, "found an array of 2 int32"),
    "3 KV heads for 4": ({"llama.attention.head_count_kv": 3}, BadFile, "head_count' is 4, which is not a multiple of .* 3"),
    "hidden size": (
        {"llama.embedding_length": 96},
        BadFile,
        r"'token_embd.weight' has shape \(320, 64\), .* call for \(320, 96\)",
    ),
    "vocabulary": (
        {"tokenizer.ggml.tokens": ["a"] * 319, "tokenizer.ggml.token_type": None},
        BadFile,
        r"'token_embd.weight' has shape \(320, 64\), .* call for \(319, 64\)",
    ),
    "value length": ({"llama.attention.value_length": 32}, Unsupported, "'llama.attention.value_length' is 32"),
    "experts": ({"llama.expert_count": 8}, Unsupported, "'llama.expert_count' is 8"),
    "odd rope": ({"llama.rope.dimension_count": 15}, BadFile, "'llama.rope.dimension_count' is 15"),
    "rope past the head": ({"llama.rope.dimension_count": 32}, BadFile, "'llama.rope.dimension_count' is 32"),
    "rope base 0": ({"llama.rope.freq_base": 0.0}, BadFile, "'llama.rope.freq_base' is 0.0"),
    "rope base NaN": (
        {"llama.rope.freq_base": float("nan")},
        BadFile,
        "'llama.rope.freq_base' must be a finite number, found nan",
    ),
    "rope kind": (
        {"llama.rope.scaling.type": "yarn"},
        Unsupported,
        "'llama.rope.scaling.type' is 'yarn', hasten has: none, linear",
    ),
    "rope factor 0": (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0},
        BadFile,
        "'llama.rope.scaling.factor' is 0.0",
    ),
    "epsilon infinite": (
        {"llama.attention.layer_norm_rms_epsilon": float("inf")},
        BadFile,
        "layer_norm_rms_epsilon' must be a finite number",
    ),
    "score type": (
        {"tokenizer.ggml.scores": np.arange(320, dtype=np.int32)},
        BadFile,
        "scores' must be an array of 320 float32, found an array of 320 int32",
    ),
    "score count": (
        {"tokenizer.ggml.scores": np.zeros(319, np.float32)},
        BadFile,
        "an array of 320 float32, found an array of 319 float32",
    ),
    "token types": ({"tokenizer.ggml.token_type": np.zeros(2, np.int32)}, BadFile, "token_type' must be an array of 320 int32"),
    "token type 9": (
        {"tokenizer.ggml.token_type": np.full(320, 9, np.int32)},
        BadFile,
        "token_type' holds values outside 1 to 6",
    ),
    "end token": ({"tokenizer.ggml.eos_token_id": 320}, BadFile, "eos_token_id' is 320, the vocabulary has 320 tokens"),
    "tokens a number": (
        {"tokenizer.ggml.tokens": 320},
        BadFile,
        "'tokenizer.ggml.tokens' must be an array of strings, found 320",
    ),
    "merges a string": ({"tokenizer.ggml.merges": "a b"}, BadFile, "'tokenizer.ggml.merges' must be an array of strings"),
    "template a number": ({"tokenizer.chat_template": 7}, BadFile, "'tokenizer.chat_template' must be a string, found 7"),
    "split": ({"split.count": 3}, Unsupported, "is one of 3 parts of a split model"),
}


@pytest.mark.parametrize("name", LYING)
def test_keys_that_contradict_the_model_are_refused_by_name(tmp_path, name):
    overrides, error, message = LYING[name]
    architecture = overrides.get("general.architecture")
    path = write_toy_gguf(tmp_path / "toy.gguf", overrides={k: v for k, v in overrides.items() if k != "general.architecture"})
    if architecture:
        path.write_bytes(path.read_bytes().replace(b"llama", architecture.encode(), 1))
    with pytest.raises(error, match=message) as caught:
        _ = open_checkpoint(path).tokenizer
    assert str(caught.value).startswith(str(path))


def test_a_token_that_is_not_utf8_is_refused(tmp_path):
    tokens, types, merges = toy_tokens()
    path = write_toy_gguf(tmp_path / "toy.gguf", tokens=([*tokens[:-1], "QQQQQ"], types, merges))
    path.write_bytes(path.read_bytes().replace(b"QQQQQ", b"QQ\xc3QQ"))
    checkpoint = open_checkpoint(path)
    with pytest.raises(BadFile, match=r"toy.gguf: key 'tokenizer.ggml.tokens': a string is not UTF-8"):
        _ = checkpoint.tokenizer


def test_a_split_part_says_what_it_is(tmp_path):
    part = tmp_path / "toy-00002-of-00003.gguf"
    write_toy_gguf(part)
    with pytest.raises(Unsupported, match="one of 3 parts of a split model"):
        open_checkpoint(part)


_OPENER = """
import json, os, resource, sys, time
from hasten.errors import HastenError
from hasten.weights import open_checkpoint

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

open_checkpoint(sys.argv[1])  # modules are imported once, before anything is measured
for path in sys.argv[2:]:
    child = os.fork()
    if not child:
        before, started = peak(), time.perf_counter()
        try:
            open_checkpoint(path)
            code, message = 0, ""
        except HastenError as error:
            code, message = 1, str(error)
        seconds = time.perf_counter() - started
        print(json.dumps({"message": message, "seconds": seconds, "bytes": peak() - before}), flush=True)
        os._exit(code)
    _, status = os.waitpid(child, 0)
    print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)
"""


def test_fr_036_damaged_files_fail_fast_and_small(tmp_path):
    """Exit code not zero, within 2 s, message names tensor or key and both sizes, no signal, memory below twice the file."""
    spec = toy_spec(num_layers=4, hidden_size=256, intermediate_size=512)
    good = write_toy_gguf(tmp_path / "good.gguf", spec=spec, weight_format="f32")
    scores = write_toy_gguf(
        tmp_path / "scores.gguf", spec=spec, weight_format="f32", overrides={"tokenizer.ggml.scores": np.zeros(320, np.int32)}
    )
    content = good.read_bytes()
    assert len(content) > 7e6
    first_key = content.index(b"general.architecture") - 8
    zero_dim = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4
    damaged = {
        "half": (
            content[: len(content) // 2],
            r"tensor 'blk\.\d\.\w+\.weight' of \d+ bytes .* needs a file of \d+ bytes, found \d+",
        ),
        "99 percent": (
            content[: len(content) * 99 // 100],
            r"tensor '.*' of \d+ bytes .* needs a file of \d+ bytes, found \d+",
        ),
        "one byte": (content[:-1], rf"needs a file of {len(content)} bytes, found {len(content) - 1}"),
        "empty key": (content[:first_key] + bytes(8) + content[first_key + 28 :], "key 0 has an empty name"),
        "zero dimension": (
            content[:zero_dim] + bytes(8) + content[zero_dim + 8 :],
            r"tensor 'token_embd.weight' has shape \(320, 0\)",
        ),
        "key length": (
            content[:first_key] + struct.pack("<Q", 2**40) + content[first_key + 8 :],
            f"has length {2**40}, at most 65535",
        ),
        "scores": (scores.read_bytes(), "'tokenizer.ggml.scores' must be an array of 320 float32, found an array of 320 int32"),
    }
    paths = []
    for name, (damaged_content, _) in damaged.items():
        paths.append(tmp_path / f"{name}.gguf")
        paths[-1].write_bytes(damaged_content)
    command = [sys.executable, "-c", _OPENER, str(good), *map(str, paths)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [json.loads(line) for line in out.splitlines()]
    for path, (_, message), report, end in zip(paths, damaged.values(), lines[::2], lines[1::2], strict=True):
        assert end["status"] == 1, (path.name, end, report)
        assert report["seconds"] < 2
        assert report["bytes"] < 2 * path.stat().st_size
        assert re.search(message, report["message"]), (path.name, report["message"])
