"""NumPy twin of attention: dense, no blocks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.floating]


def attend(q: Float, k: Float, v: Float, *, scale: float) -> Float:
    """Softmax attention. q: [rows, head_dim], k, v: [keys, head_dim]; every row sees every key; returns [rows, head_dim]."""
    scores = q @ k.T * scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: Float = weights @ v / weights.sum(axis=-1, keepdims=True)
    return out
