"""Llama and the models that share its decoder (SmolLM2, TinyLlama, Mistral …): spec and weight names in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping

from hasten.errors import BadFile, Unsupported
from hasten.models import Metadata
from hasten.models.spec import EMBED, FINAL_NORM, HEAD, ModelSpec, RopeSpec, layer_tensor

MAX_LAYERS = 4096  # ten times the deepest models in use; a layer more costs only the check below, but it must end


def spec_from_gguf(metadata: Metadata, *, vocab_size: int, tied_head: bool, freq_factors: tuple[float, ...]) -> ModelSpec:
    """The decoder described by `llama.*` keys.

    Args:
        vocab_size: rows of the embedding, from the vocabulary.
        tied_head: the file has no output.weight.
        freq_factors: the file's rope_freqs.weight, one divisor for each rotated pair; empty when it has none.
    Raises: BadFile or Unsupported naming the key.
    """
    num_q_heads = _positive(metadata, "llama.attention.head_count")
    num_kv_heads = _positive(metadata, "llama.attention.head_count_kv", num_q_heads)
    hidden_size = _positive(metadata, "llama.embedding_length")
    if num_q_heads % num_kv_heads:
        raise BadFile(
            f"key 'llama.attention.head_count' is {num_q_heads}, which is not a multiple of "
            f"'llama.attention.head_count_kv' {num_kv_heads}"
        )
    head_dim = _positive(metadata, "llama.attention.key_length", hidden_size // num_q_heads)
    value_length = _positive(metadata, "llama.attention.value_length", head_dim)
    if value_length != head_dim:
        raise Unsupported(
            f"key 'llama.attention.value_length' is {value_length}, hasten needs it equal to the key length {head_dim}"
        )
    if num_experts := metadata.integer("llama.expert_count", 0):
        raise Unsupported(f"key 'llama.expert_count' is {num_experts}: mixtures of experts are not supported")
    return ModelSpec(
        model_type="llama",
        num_layers=_positive(metadata, "llama.block_count", limit=MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=_positive(metadata, "llama.feed_forward_length"),
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position=_positive(metadata, "llama.context_length"),
        norm_eps=_in_range(metadata, "llama.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=_rope(metadata, head_dim, freq_factors),
        tied_head=tied_head,
    )


def _rope(metadata: Metadata, head_dim: int, freq_factors: tuple[float, ...]) -> RopeSpec:
    dim = _positive(metadata, "llama.rope.dimension_count", head_dim)
    if dim % 2 or dim > head_dim:
        raise BadFile(f"key 'llama.rope.dimension_count' is {dim}, it must be even and at most the head dimension {head_dim}")
    if freq_factors and len(freq_factors) != dim // 2:
        raise BadFile(
            f"tensor 'rope_freqs.weight' has {len(freq_factors)} values, {dim // 2} are needed for {dim} rotated dimensions"
        )
    # files from before 2023-10 have scale_linear alone
    factor = _in_range(metadata, "llama.rope.scale_linear", 0.0, 1e6, 1.0)
    kind = metadata.text("llama.rope.scaling.type", "linear" if factor != 1.0 else "none")
    if kind not in ("none", "linear"):
        raise Unsupported(f"key 'llama.rope.scaling.type' is {kind!r}, hasten has: none, linear (and a rope_freqs tensor)")
    factor = _in_range(metadata, "llama.rope.scaling.factor", 0.0, 1e6, factor) if kind == "linear" else 1.0
    return RopeSpec(
        dim=dim,
        base=_in_range(metadata, "llama.rope.freq_base", 0.0, 1e12, 10000.0),
        interleaved=True,  # Llama-type files store query and key rows in the order of paired neighbours
        scaling="linear" if factor != 1.0 else "default",
        factor=factor,
        freq_factors=freq_factors,
    )


def gguf_names(spec: ModelSpec) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Our tensor name → (name in the file, shape it must have)."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_q_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = {
        "attn_norm": ("attn_norm", (hidden,)),
        "q": ("attn_q", (q_size, hidden)),
        "k": ("attn_k", (kv_size, hidden)),
        "v": ("attn_v", (kv_size, hidden)),
        "o": ("attn_output", (hidden, q_size)),
        "ffn_norm": ("ffn_norm", (hidden,)),
        "gate": ("ffn_gate", (inner, hidden)),
        "up": ("ffn_up", (inner, hidden)),
        "down": ("ffn_down", (hidden, inner)),
    }
    names: dict[str, tuple[str, tuple[int, ...]]] = {
        EMBED: ("token_embd.weight", (spec.vocab_size, hidden)),
        FINAL_NORM: ("output_norm.weight", (hidden,)),
    }
    if not spec.tied_head:
        names[HEAD] = ("output.weight", (spec.vocab_size, hidden))
    for i in range(spec.num_layers):
        for ours, (theirs, shape) in layer.items():
            names[layer_tensor(i, ours)] = (f"blk.{i}.{theirs}.weight", shape)
    return names


def _positive(metadata: Metadata, key: str, default: int | None = None, *, limit: int = 2**31 - 1) -> int:
    value = metadata.integer(key, default)
    if not 1 <= value <= limit:
        raise BadFile(f"key {key!r} is {value}, it must be from 1 to {limit}")
    return value


def _in_range(metadata: Metadata, key: str, low: float, high: float, default: float | None = None) -> float:
    value = metadata.number(key, default)
    if not low < value <= high:  # also refuses NaN
        raise BadFile(f"key {key!r} is {value}, it must be above {low:g} and at most {high:g}")
    return value
