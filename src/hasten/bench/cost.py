"""What a token costs on a machine that is paid by the hour."""

from __future__ import annotations

from typing import Any

from hasten.errors import UsageError

SPLIT_RULE = (
    "the hour is split between input and output by the time requests spent before and after their first token, "
    "counted from the actual send (queueing in the server counts as input)"
)


def token_cost(price_per_hour: float, summary: dict[str, Any], *, currency: str) -> dict[str, Any] | None:
    """Currency per million input and output tokens; None where nothing was answered.

    Only tokens of answers that met the targets are sold (all answered ones without targets), and the whole measured time is
    paid. Raises: UsageError for a price that is not positive.
    """
    if not 0 < price_per_hour < float("inf"):
        raise UsageError(f"the price per hour is {price_per_hour}, it must be positive")
    sold = summary["goodput"] or {"output_tokens": summary["tokens"]["output"], "input_tokens": summary["tokens"]["input"]}
    samples = summary["samples"]
    before_ms = sum(value for value in samples["ttft_from_send_ms"] if value is not None)
    whole_ms = sum(e2e - wait for e2e, wait in zip(samples["e2e_ms"], samples["send_wait_ms"], strict=True))
    if whole_ms <= 0:
        return None
    paid = price_per_hour * summary["throughput"]["paid_s"] / 3600
    input_share = min(1.0, before_ms / whole_ms)
    return {
        "currency": currency,
        "price_per_hour": price_per_hour,
        "input_share": input_share,
        "input_per_million": _per_million(paid * input_share, sold["input_tokens"]),
        "output_per_million": _per_million(paid * (1 - input_share), sold["output_tokens"]),
        "blended_per_million": _per_million(paid, sold["input_tokens"] + sold["output_tokens"]),
        "tokens_counted": "of answers that met the targets" if summary["goodput"] else "of all answers",
        "split_rule": SPLIT_RULE,
    }


def _per_million(paid: float, tokens: int) -> float | None:
    return paid / tokens * 1e6 if tokens else None
