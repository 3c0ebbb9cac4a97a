"""Over one row of logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hasten import _kernels
from hasten.ops.kernels import AUTO

Float32 = npt.NDArray[np.float32]


def argmax(x: Float32, *, isa: str = AUTO) -> int:
    """Lowest index of the largest value of [n]; NaN never wins; -1 when there is nothing but NaN and -inf."""
    return int(_kernels.argmax(x, isa))


def log_sum_exp(x: Float32, *, isa: str = AUTO) -> float:
    """ln Σ e^x of [n]."""
    return float(_kernels.log_sum_exp(x, isa))


def exp_scaled(x: Float32, *, scale: float, shift: float, isa: str = AUTO) -> Float32:
    """e^(x · scale − shift) of [n]; results below the smallest normal float are 0."""
    out = np.empty_like(x)
    _kernels.exp_scaled(x, scale, shift, out, isa)
    return out
