"""Which instruction sets the kernels can use here, and the exact functions of ours that every table shares."""

from __future__ import annotations

from hasten import _kernels

AUTO = "auto"  # HASTEN_ISA if set, else the best this CPU has


def available_isas() -> list[str]:
    """Names of the kernel tables this CPU and operating system can run, "scalar" first."""
    return list(_kernels.available_isas())


def selected_isa(isa: str = AUTO) -> str:
    """The table `isa` stands for. Raises ValueError, naming the available ones, when it is unknown or cannot run here."""
    return str(_kernels.selected_isa(isa))


def own_exp(x: float) -> float:
    """e^x in double, the same bits on every machine; relative error below 1e-14."""
    return float(_kernels.own_exp(x))


def own_log(x: float) -> float:
    """ln x in double, the same bits on every machine; relative error below 1e-14."""
    return float(_kernels.own_log(x))


def own_sin_cos(x: float) -> tuple[float, float]:
    """(sin x, cos x) in double for |x| < 1e9, else NaN; the same bits on every machine."""
    sin, cos = _kernels.own_sin_cos(x)
    return float(sin), float(cos)
