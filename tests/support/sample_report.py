"""A report that uses every kind of block, with text that would break careless writers."""

from __future__ import annotations

import math

from hasten.report import Column, Figure, Figures, Note, Plot, Report, Section, Series, Table, Text

HOSTILE = '<script>alert("x")</script> & | `tick` *star*'


def sample_report() -> Report:
    """Built afresh each time; all values are literals."""
    ttft = Series(
        "server A", (1.0, 2.0, 4.0, 8.0), (50.0, 52.0, 61.0, 90.0), (48.0, 50.0, 57.0, 80.0), (53.0, 55.0, 66.0, 99.0)
    )
    other = Series("server B", (1.0, 2.0, 4.0, 8.0), (70.0, 75.0, math.nan, 300.0))
    many = Series("gaps", tuple(float(i) for i in range(1, 201)), tuple(5.0 + i % 7 for i in range(200)))
    bars = Series("requests", (0.0, 1.0, 2.0), (10.0, 3.0, 1.0))
    return Report(
        title=f"Sample {HOSTILE}",
        summary="Every kind of block once.",
        sections=(
            Section(
                "Figures",
                (
                    Figures((Figure("TTFT p50", 50.1234, "ms", "95 %: 48 to 53"), Figure("errors", 3), Figure("none", None))),
                    Note("warning", "The client was busy."),
                    Text(HOSTILE),
                ),
            ),
            Section(
                "Tables and plots",
                (
                    Table(
                        "Percentiles",
                        (Column("metric"), Column("p50", "ms", 2), Column("count")),
                        (("ttft", 50.1234, 1200), (HOSTILE, None, 7)),
                    ),
                    Plot("TTFT by load", "TTFT grows with load, B faster.", "requests at once", "TTFT (ms)", (ttft, other)),
                    Plot("Gaps", "Most gaps are 5 to 11 ms.", "token", "gap (ms)", (many,), kind="step", y_log=True),
                    Plot(
                        "Errors",
                        "Most errors are resets.",
                        "kind",
                        "count",
                        (bars,),
                        kind="bar",
                        categories=("reset", "timeout", "500"),
                    ),
                    Plot("Nothing", "No data.", "x", "y", (Series("empty", (), ()),)),
                ),
            ),
        ),
        facts=(("machine", "2 cores"), ("flags", HOSTILE)),
        data={"ttft_ms": {"p50": 50.1234}, "nan": math.nan},
    )
