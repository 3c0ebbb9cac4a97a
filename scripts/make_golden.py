"""Write tests/oracle/golden/*.npz: logits, greedy answers and RoPE frequencies computed by transformers in float32.

Run with a Python that has torch, transformers and gguf:

    PYTHONPATH=src:. python scripts/make_golden.py PATH-OF-SmolLM2-135M-Instruct.Q4_1.gguf

The GGUF file is read, dequantized and its rows put in order by transformers; nothing of hasten computes here. Toy weights
come from tests/support/toy_gguf.py; a checksum of them is kept, so that a change of the generator is seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hasten.models.llama import gguf_names
from hasten.models.spec import ModelSpec, RopeSpec
from tests.support.toy_gguf import toy_weights
from tests.support.toy_models import GREEDY_TOY, TOYS, toy_prompt

GOLDEN = Path(__file__).parent.parent / "tests" / "oracle" / "golden"
NUM_TOP = 32
NUM_NEW_TOKENS = 64

TEXTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "The three primary colours are",
    "To make bread you need flour, water,",
    "In 1969, the first human",
    "SELECT name FROM users WHERE",
    "The opposite of hot is",
    "Dear Sir or Madam,\n\nI am writing to",
    "<|im_start|>user\nWhat is the largest planet?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nName two fruits.<|im_end|>\n<|im_start|>assistant\n",
    "Shakespeare wrote the play",
    "1, 1, 2, 3, 5, 8,",
    "Photosynthesis is the process by which",
    "The quick brown fox",
    "import numpy as np\n\nx = np.",
    "She opened the door and saw",
    "A triangle with three equal sides is called",
    "Die Hauptstadt von Deutschland ist",
)
ROPES = {
    "default": RopeSpec(dim=64, base=100000.0, interleaved=False),
    "linear": RopeSpec(dim=128, base=10000.0, interleaved=False, scaling="linear", factor=4.0),
    "llama3": RopeSpec(dim=128, base=500000.0, interleaved=False, scaling="llama3", factor=8.0),
}


def rope_parameters(rope: RopeSpec) -> dict[str, Any]:
    parameters: dict[str, Any] = {"rope_type": rope.scaling, "rope_theta": rope.base}
    if rope.scaling != "default":
        parameters["factor"] = rope.factor
    if rope.scaling == "llama3":
        parameters |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position,
        }
    return parameters


def llama_config(spec: ModelSpec) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_q_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_position,
        rms_norm_eps=spec.norm_eps,
        tie_word_embeddings=spec.tied_head,
        rope_parameters=rope_parameters(spec.rope),
        attn_implementation="eager",
    )


def hf_name(ours: str) -> str:
    """Our tensor name as Hugging Face's Llama writes it."""
    top = {"embed": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
    if ours in top:
        return f"{top[ours]}.weight"
    _, i, name = ours.split(".")
    part = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}.get(name)
    part = part or (f"self_attn.{name}_proj" if name in "qkvo" else f"mlp.{name}_proj")
    return f"model.layers.{i}.{part}.weight"


def toy_model(spec: ModelSpec, seed: int) -> LlamaForCausalLM:
    weights = toy_weights(spec, seed)
    model = LlamaForCausalLM(llama_config(spec)).eval().float()
    state = {hf_name(name): torch.from_numpy(weights[name].copy()) for name in gguf_names(spec)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= ({"lm_head.weight"} if spec.tied_head else set()), missing
    model.tie_weights()
    return model


@torch.no_grad()
def logits_of(model: Any, token_ids: list[int]) -> np.ndarray:
    return model(torch.tensor([token_ids])).logits[0].float().numpy()


@torch.no_grad()
def greedy(model: Any, prompts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """NUM_NEW_TOKENS greedy tokens of each prompt and, at each, how far the best logit was above the second.

    All prompts at once, padded on the left and masked: the weights are read once for all.
    """
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    cache, tokens, gaps = None, [], []
    for _ in range(NUM_NEW_TOKENS):
        known = {} if cache is None else {"cache": cache}
        out = model(ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1, **known)
        cache = out.cache
        best = torch.topk(out.logits[:, -1].float(), 2)
        tokens.append(best.indices[:, 0])
        gaps.append(best.values[:, 0] - best.values[:, 1])
        ids, positions = best.indices[:, :1], positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return torch.stack(tokens, dim=1).numpy().astype(np.int32), torch.stack(gaps, dim=1).numpy()


def save(name: str, arrays: dict[str, np.ndarray], source: str) -> None:
    about = {
        "script": "scripts/make_golden.py",
        "source": source,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }
    path = GOLDEN / f"{name}.npz"
    np.savez_compressed(path, about=np.array(json.dumps(about)), **arrays)
    print(f"{path.name}: {path.stat().st_size} bytes, {len(arrays)} arrays")


def make_toys() -> None:
    arrays = {}
    for name, (spec, seed) in TOYS.items():
        model = toy_model(spec, seed)
        arrays[f"{name}.logits"] = logits_of(model, toy_prompt(spec, seed))
        arrays[f"{name}.weight_sum"] = np.array(
            sum(float(w.astype(np.float64).sum()) for w in toy_weights(spec, seed).values())
        )
    save("toys", arrays, "toy models of tests/support/toy_models.py")
    spec, seed = GREEDY_TOY
    prompts = [toy_prompt(spec, 100 + i, num_tokens=4 + i) for i in range(20)]
    tokens, gaps = greedy(toy_model(spec, seed), prompts)
    arrays = {"tokens": tokens, "gaps": gaps}
    save("toy_greedy", arrays, "GREEDY_TOY of tests/support/toy_models.py")


def rope_frequencies(rope: RopeSpec) -> np.ndarray:
    config = LlamaConfig(
        hidden_size=rope.dim * 2,
        num_attention_heads=2,
        head_dim=rope.dim,
        max_position_embeddings=131072,
        rope_parameters=rope_parameters(rope),
    )
    return transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config).inv_freq.numpy()


def make_rope() -> None:
    arrays = {name: rope_frequencies(rope) for name, rope in ROPES.items()}
    save("rope", arrays, "LlamaRotaryEmbedding.inv_freq; parameters as in test_rope of tests/oracle/test_models.py")


def make_smollm2(path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    tokens, gaps = greedy(model, prompts)
    arrays = {"tokens": tokens, "gaps": gaps}
    for i, (text, prompt) in enumerate(zip(TEXTS, prompts, strict=True)):
        arrays[f"{i}.prompt"] = np.array(prompt, dtype=np.int32)
        logits = logits_of(model, prompt)
        order = np.argsort(-logits, axis=1, kind="stable")[:, :NUM_TOP]
        arrays[f"{i}.top_ids"] = order.astype(np.int32)
        arrays[f"{i}.top_logits"] = np.take_along_axis(logits, order, axis=1)
        wide = logits.astype(np.float64)
        arrays[f"{i}.logsumexp"] = np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1)) + wide.max(axis=1)
        arrays[f"{i}.moments"] = np.stack([wide.mean(axis=1), wide.std(axis=1)], axis=1)
        print(repr(text), "→", repr(tokenizer.decode(tokens[i])), flush=True)
    save("smollm2", arrays, f"{path.name} dequantized to float32 by transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("smollm2", type=Path, nargs="?", help="GGUF file of the demo model; without it only toys and RoPE")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    GOLDEN.mkdir(parents=True, exist_ok=True)
    make_toys()
    make_rope()
    if arguments.smollm2:
        make_smollm2(arguments.smollm2)


if __name__ == "__main__":
    main()
