"""A decoder as data: what csrc/model and the reference decoder build their phases from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding.

    `interleaved`: pairs are (2i, 2i+1) as in Llama-type GGUF files, else (i, i + dim/2) as in Hugging Face files.
    scaling: "default"; "linear" divides every frequency by `factor`; "llama3" scales by wavelength. When the file carries
    a tensor of per-frequency divisors (`rope_freqs.weight`), `freq_factors` holds it and scaling is "default".
    """

    dim: int  # rotated dimensions of a head, even, the first ones
    base: float
    interleaved: bool
    scaling: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    freq_factors: tuple[float, ...] = ()  # [dim / 2]; empty: none


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A Llama-family decoder. Fields for later architectures are added with the code that reads them."""

    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    norm_eps: float
    rope: RopeSpec
    tied_head: bool

    def __post_init__(self) -> None:
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_q_heads} query heads do not divide into {self.num_kv_heads} KV heads")


# Names of ours for the tensors of a decoder; {i} is the layer. models/<model_type>.py maps a file's names to these.
EMBED = "embed"
FINAL_NORM = "final_norm"
HEAD = "head"  # absent when tied
LAYER_TENSORS = ("attn_norm", "q", "k", "v", "o", "ffn_norm", "gate", "up", "down")


def layer_tensor(i: int, name: str) -> str:
    """ "layers.3.q" for (3, "q")."""
    return f"layers.{i}.{name}"
