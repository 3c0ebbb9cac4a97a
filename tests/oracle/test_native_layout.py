"""The numbers of csrc/model/kv_layout.h are those of kv_store.py."""

from __future__ import annotations

import pytest

from hasten import _kernels
from hasten.kv_store import KvLayout


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("kv_format", ["bf16", "int8", "f32"])
def test_offsets_are_those_of_kv_store(kv_format: str, head_dim: int) -> None:
    layout = KvLayout(kv_format, 3, 2, head_dim)  # type: ignore[arg-type]
    config = _kernels.ModelConfig()
    config.num_layers, config.num_kv_heads, config.head_dim = 3, 2, head_dim
    for layer in range(3):
        for is_value in (False, True):
            for head in range(2):
                sizes = _kernels.kv_layout_sizes(config, kv_format, layer, is_value, head)
                assert sizes == (layout.head_bytes, layout.block_bytes, layout.offset(layer, is_value, head))
