"""Checkpoints held in memory for the native executor: toys in any weight format, and a model with logits of one's choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hasten.models.spec import EMBED, FINAL_NORM, HEAD, ModelSpec
from hasten.quant import FORMATS
from hasten.weights.checkpoint import RawTensor, TokenizerData
from tests.support.toy_gguf import toy_spec, toy_weights

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class MemoryCheckpoint:
    """A Checkpoint of float32 weights, its matrices stored in `weight_format` (the embedding and head in `embed_format`)."""

    spec: ModelSpec
    weights: Mapping[str, Floats]
    weight_format: str = "f32"
    embed_format: str = "f32"
    path: str = "toy"
    generation_defaults: Mapping[str, float | int] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        return f"toy-{self.weight_format}-{self.embed_format}"

    @property
    def tokenizer(self) -> TokenizerData:
        return TokenizerData("gpt2", "smollm", (), (), (), None, (), False, False, None)

    def tensor(self, name: str) -> RawTensor:
        array = np.ascontiguousarray(self.weights[name], dtype=np.float32)
        if array.ndim == 1:
            return RawTensor(name, "f32", array.shape, array[None].view(np.uint8))
        weight_format = self.embed_format if name in (EMBED, HEAD) else self.weight_format
        return RawTensor(name, weight_format, array.shape, FORMATS[weight_format].quantize(array))

    def stored(self, name: str) -> npt.NDArray[np.float64]:
        """The tensor as float64, after rounding to its format."""
        raw = self.tensor(name)
        return FORMATS[raw.format].dequantize(raw.data).reshape(raw.shape).astype(np.float64)

    def close(self) -> None:
        pass


def toy_checkpoint(
    spec: ModelSpec | None = None, *, weight_format: str = "f32", embed_format: str | None = None, seed: int = 0
) -> MemoryCheckpoint:
    """Random weights (tests.support.toy_gguf.toy_weights) in a format."""
    spec = spec or toy_spec()
    return MemoryCheckpoint(spec, toy_weights(spec, seed), weight_format, embed_format or weight_format)


def logit_checkpoint(logits: npt.NDArray[np.floating], *, nan_tokens: tuple[int, ...] = ()) -> MemoryCheckpoint:
    """A model whose logits are `logits` [vocab_size] whatever came before, up to float32 rounding (1e-6 relative).

    Every layer matrix is zero, so that the residual stream is the embedding: the first unit vector, for every token. A
    token of `nan_tokens` has a NaN embedding, which makes all logits behind it NaN.
    """
    spec = toy_spec(num_layers=1, hidden_size=32, intermediate_size=32, head_dim=16, num_q_heads=2, num_kv_heads=1,
                    vocab_size=len(logits), max_position=8192, tied_head=False, norm_eps=1e-12)  # fmt: skip
    weights = {name: np.zeros_like(array) for name, array in toy_weights(spec).items()}
    for array in weights.values():
        if array.ndim == 1:
            array[:] = 1.0
    weights[EMBED][:, 0] = 1.0
    weights[EMBED][list(nan_tokens)] = np.nan
    weights[FINAL_NORM][:] = 32**-0.5  # the norm scales the unit vector by sqrt(32)
    weights[HEAD][:, 0] = logits
    return MemoryCheckpoint(spec, weights)
