"""The generic decoder in NumPy float32: obvious code that says what csrc/model computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hasten.models.rope import rotate
from hasten.models.spec import EMBED, FINAL_NORM, HEAD, LAYER_TENSORS, ModelSpec, layer_tensor

Floats = npt.NDArray[np.float32]


class KvStore(Protocol):
    """K and V of one request."""

    def write(self, layer: int, start: int, keys: Floats, values: Floats) -> None:
        """Keep [num_tokens, num_kv_heads, head_dim] for the positions from `start`."""
        ...

    def read(self, layer: int, num_tokens: int) -> tuple[Floats, Floats]:
        """K and V of positions 0 to num_tokens, each [num_tokens, num_kv_heads, head_dim]."""
        ...


class DenseKvStore:
    """K and V as they come, for one run over a whole text."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Floats, Floats]] = {}

    def write(self, layer: int, start: int, keys: Floats, values: Floats) -> None:
        if start:
            old_keys, old_values = self._layers[layer]
            keys, values = np.concatenate([old_keys[:start], keys]), np.concatenate([old_values[:start], values])
        self._layers[layer] = keys, values

    def read(self, layer: int, num_tokens: int) -> tuple[Floats, Floats]:
        keys, values = self._layers[layer]
        return keys[:num_tokens], values[:num_tokens]


class Decoder:
    """A Llama-family decoder over float32 weights.

    Args:
        tensor: our tensor name → float32 array, (rows, cols) or (n,); called once for each name.
    """

    def __init__(self, spec: ModelSpec, tensor: Callable[[str], Floats]) -> None:
        self.spec = spec
        self._embed = tensor(EMBED)
        self._layers = [{name: tensor(layer_tensor(i, name)) for name in LAYER_TENSORS} for i in range(spec.num_layers)]
        self._final_norm = tensor(FINAL_NORM)
        self._head = self._embed if spec.tied_head else tensor(HEAD)

    @property
    def weight_bytes(self) -> int:
        arrays = [self._embed, self._final_norm, *(array for layer in self._layers for array in layer.values())]
        return sum(array.nbytes for array in arrays) + (0 if self.spec.tied_head else self._head.nbytes)

    def hidden(
        self, token_ids: Sequence[int], start: int, kv: KvStore, between_layers: Callable[[], None] = lambda: None
    ) -> Floats:
        """Compute tokens at positions start, start + 1, … and write their K/V.

        Args:
            between_layers: called before every layer; raises to stop.
        Returns: [num_tokens, hidden_size] float32, after the last layer and before the final norm.
        """
        x = self._embed[np.asarray(token_ids, dtype=np.int64)]
        positions = np.arange(start, start + len(token_ids), dtype=np.int64)
        for i, layer in enumerate(self._layers):
            between_layers()
            normed = rms_norm(x, layer["attn_norm"], self.spec.norm_eps)
            x = np.add(x, self._attention(i, normed, positions, kv), dtype=np.float32)
            normed = rms_norm(x, layer["ffn_norm"], self.spec.norm_eps)
            gated = silu(normed @ layer["gate"].T) * (normed @ layer["up"].T)
            x = np.add(x, gated @ layer["down"].T, dtype=np.float32)
        return x

    def logits(self, hidden: Floats) -> Floats:
        """[n, hidden_size] as `hidden` gives it → [n, vocab_size] float32."""
        logits: Floats = rms_norm(hidden, self._final_norm, self.spec.norm_eps) @ self._head.T
        return logits

    def _attention(self, i: int, x: Floats, positions: npt.NDArray[np.int64], kv: KvStore) -> Floats:
        spec, layer, num_tokens = self.spec, self._layers[i], len(x)
        queries = (x @ layer["q"].T).reshape(num_tokens, spec.num_q_heads, spec.head_dim)
        keys = (x @ layer["k"].T).reshape(num_tokens, spec.num_kv_heads, spec.head_dim)
        values = (x @ layer["v"].T).reshape(num_tokens, spec.num_kv_heads, spec.head_dim)
        kv.write(i, int(positions[0]), rotate(keys, positions, spec.rope), values)
        all_keys, all_values = kv.read(i, int(positions[-1]) + 1)
        out = causal_attention(rotate(queries, positions, spec.rope), all_keys, all_values, positions)
        projected: Floats = out.reshape(num_tokens, -1) @ layer["o"].T
        return projected


def causal_attention(queries: Floats, keys: Floats, values: Floats, positions: npt.NDArray[np.int64]) -> Floats:
    """Attend each query to the keys at its own and earlier positions.

    Args:
        queries: [num_tokens, num_q_heads, head_dim]; head h uses KV head h // (num_q_heads // num_kv_heads).
        keys, values: [context_len, num_kv_heads, head_dim], positions 0, 1, ….
        positions: [num_tokens], of the queries.
    Returns: [num_tokens, num_q_heads, head_dim] float32, new.
    """
    num_tokens, num_q_heads, head_dim = queries.shape
    context_len, num_kv_heads, _ = keys.shape
    # [kv head, tokens × query heads of the group, head_dim]: a group is one matrix product
    grouped = queries.reshape(num_tokens, num_kv_heads, -1, head_dim).transpose(1, 2, 0, 3).reshape(num_kv_heads, -1, head_dim)
    scores = (grouped @ keys.transpose(1, 2, 0)) * np.float32(head_dim**-0.5)
    scores = scores.reshape(num_kv_heads, -1, num_tokens, context_len)
    is_later = np.arange(context_len) > positions[:, None]
    scores = np.where(is_later, np.float32(-np.inf), scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = weights.reshape(num_kv_heads, -1, context_len) @ values.transpose(1, 0, 2)
    heads_first = out.reshape(num_q_heads, num_tokens, head_dim)
    return np.ascontiguousarray(heads_first.transpose(1, 0, 2))


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x²) + eps) · weight over the last axis."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    return np.multiply(x / np.sqrt(mean_square + np.float32(eps)), weight, dtype=np.float32)


def silu(x: Floats) -> Floats:
    """x · sigmoid(x)."""
    with np.errstate(over="ignore"):  # exp(-x) is inf below -88, and x / inf is the right 0
        return np.divide(x, np.float32(1) + np.exp(-x), dtype=np.float32)
