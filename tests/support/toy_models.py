"""The toy models that golden files were made of (scripts/make_golden.py): shapes, seeds and prompts."""

from __future__ import annotations

import numpy as np

from hasten.models.spec import ModelSpec, RopeSpec
from tests.support.toy_gguf import toy_spec

_LLAMA3 = RopeSpec(dim=32, base=10000.0, interleaved=False, scaling="llama3", factor=8.0, original_max_position=64)

# name → spec (Hugging Face row order) and seed of the weights
TOYS: dict[str, tuple[ModelSpec, int]] = {
    "grouped": (toy_spec(), 1),
    "untied": (toy_spec(num_q_heads=4, num_kv_heads=4, tied_head=False), 2),
    "one_kv_head": (toy_spec(num_layers=3, hidden_size=96, num_q_heads=6, num_kv_heads=1, intermediate_size=160), 3),
    "linear": (toy_spec(rope=RopeSpec(dim=16, base=10000.0, interleaved=False, scaling="linear", factor=4.0)), 4),
    "llama3": (toy_spec(head_dim=32, rope=_LLAMA3), 5),
}
# untied: with a tied head a random model repeats its last token
GREEDY_TOY: tuple[ModelSpec, int] = (toy_spec(num_layers=3, hidden_size=128, head_dim=32, tied_head=False), 6)


def toy_prompt(spec: ModelSpec, seed: int, num_tokens: int = 40) -> list[int]:
    """Random tokens; 40 cross a block border."""
    return np.random.default_rng(1000 + seed).integers(3, spec.vocab_size, num_tokens).tolist()
