"""The K/V arrays: one owner, one layout.

A block holds BLOCK_SIZE tokens of every layer and is one contiguous run of bytes, so that it can be copied, saved and
mapped as a whole. Inside a block:

    [layer][K, then V][kv head] → one packed tile group per head, starting at a multiple of 64 bytes

K and V are packed when written, in the order attention reads them; K is rotated by RoPE before it is written.

bf16   K: [2 halves of 16 tokens][head_dim / 2][16 tokens][2 dims]   (pairs of dims side by side: the operand of a bf16 dot)
       V: [head_dim / 16][16 token pairs][16 dims][2 tokens]          (one 32-token × 16-dim tile)
int8   K: [2 halves of 16 tokens][head_dim / 4][16 tokens][4 dims] int8, then [32] float32 scales (one per token)
       V: [head_dim / 16][8 token quads][16 dims][4 tokens] int8,   then [32] float32 scales
       K (and q) are rotated over head_dim by a normalised Hadamard transform after RoPE (largest power of two that
       divides head_dim, applied block by block); scale = max|x| / 127, code = round-to-nearest-even(x / scale).
f32    K: [2 halves of 16 tokens][head_dim][16 tokens]
       V: [head_dim / 16][32 tokens][16 dims]
       The reference executor keeps K and V unpacked in the same space: [32 tokens][head_dim].

head_dim is a multiple of 16 where K and V are packed. bf16 is rounded to nearest even; f32 is not rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BLOCK_SIZE = 32  # tokens: one full bf16 V tile
ALIGN_BYTES = 64

KvStoreFormat = Literal["bf16", "int8", "f32"]


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Sizes and offsets of one block. `csrc/model/kv_layout.h` computes the same numbers; a test compares them."""

    format: KvStoreFormat
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def head_bytes(self) -> int:
        """Bytes of K (or of V) of one head in one layer of one block."""
        per_value = {"bf16": 2, "int8": 1, "f32": 4}[self.format]
        scales = BLOCK_SIZE * 4 if self.format == "int8" else 0
        raw = BLOCK_SIZE * self.head_dim * per_value + scales
        return -(-raw // ALIGN_BYTES) * ALIGN_BYTES

    @property
    def layer_bytes(self) -> int:
        return 2 * self.num_kv_heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        return self.num_layers * self.layer_bytes

    def offset(self, layer: int, is_value: bool, kv_head: int) -> int:
        """Byte offset of a head's K or V inside a block."""
        return layer * self.layer_bytes + (int(is_value) * self.num_kv_heads + kv_head) * self.head_bytes
