"""A result, a sweep or a comparison as a report for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hasten.bench.compare import Change
from hasten.bench.stats import QUANTILES, block_ids, bootstrap, least_count
from hasten.report import Column, Figure, Figures, Note, Plot, Report, Section, Series, Table, Text
from hasten.report.model import Cell, format_cell

_NAMES = {
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "itl_ms": "token gap",
    "chunk_gap_ms": "chunk gap",
    "e2e_ms": "whole answer",
    "ttft_from_send_ms": "TTFT from the send",
    "send_wait_ms": "wait before the send",
}
_QUANTILES = ("p50", "p90", "p95", "p99")
_CURVE_POINTS = 200


def result_report(result: dict[str, Any], *, plots: bool = True) -> Report:
    """One run. Without plots it fits a terminal."""
    sections = [
        Section("What it was", (*_findings(result), Text(_what(result)))),
        Section("Latency", (_key_figures(result), *_latency_tables(result), *(_latency_plots(result) if plots else ()))),
        Section("Throughput", (_throughput_table(result),)),
        Section("Requests", (_requests_table(result), *_errors(result))),
        Section("Can the client be believed?", (_audit_table(result), *_noise(result))),
    ]
    if result.get("cost"):
        sections.insert(3, Section("Cost", (_cost_table(result["cost"]), Text(f"Rule: {result['cost']['split_rule']}."))))
    return Report("hasten bench", _summary(result), tuple(sections), _facts(result), {"result": result})


def sweep_report(result: dict[str, Any], *, plots: bool = True) -> Report:
    """A sweep: one row a step, and the curves."""
    points = result["points"]
    load = "users" if result["sweep"] == "concurrency" else "requests/s"
    names = ("output tokens/s", "requests/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "errors", "why no higher load")
    units = ("", "", "ms", "ms", "ms", "ms", "%", "")
    rows = tuple(_sweep_row(point) for point in points)
    columns = (Column(load), *(Column(name, unit) for name, unit in zip(names, units, strict=True)))
    xs = tuple(float(point["load"]["value"]) for point in points)
    curves = [
        _sweep_plot("Output tokens per second", load, "tokens/s", xs, {"output": [row[1] for row in rows]}),
        _sweep_plot("Time to first token", load, "ms", xs, {"p50": [row[3] for row in rows], "p99": [row[4] for row in rows]}),
        _sweep_plot(
            "Time per output token", load, "ms", xs, {"p50": [row[5] for row in rows], "p99": [row[6] for row in rows]}
        ),
    ]
    best = "no step was good" if result["best"] is None else f"best step: {result['best']:g} {load}"
    summary = f"{best}; stopped because: {result['stopped']}."
    sections = [Section("Steps", (Table("Steps of the sweep", columns, rows),))]
    if plots:
        sections.append(Section("Curves", tuple(curves)))
    return Report(f"hasten bench: sweep over {load}", summary, tuple(sections), _facts(result), {"result": result})


def compare_report(changes: Sequence[Change], a: str, b: str) -> Report:
    """Changes of B against A."""
    columns = (Column("metric"), Column("A"), Column("B"), Column("worse by", "%", 1), Column("at least", "%", 1),
               Column("at most", "%", 1), Column("gate", "%", 1), Column("verdict"))  # fmt: skip
    rows = tuple((c.metric, c.a, c.b, *map(_percent, (c.change, c.low, c.high, c.threshold)), c.verdict) for c in changes)
    texts = tuple(Text(change.text) for change in changes)
    worse = [change.metric for change in changes if change.verdict == "worse"]
    summary = f"Worse beyond the noise: {', '.join(worse)}." if worse else "Nothing is worse beyond the noise."
    section = Section("Changes", (Table("B against A", columns, rows), *texts))
    return Report("hasten bench compare", summary, (section,), (("A", a), ("B", b)), {})


def _percent(share: float | None) -> float | None:
    return share * 100 if share is not None and math.isfinite(share) else None


def _summary(result: dict[str, Any]) -> str:
    requests, latency, throughput = result["requests"], result["latency"], result["throughput"]
    if not requests["ok"]:
        return f"None of {requests['measured']} measured requests was answered."
    parts = [f"{requests['ok']} of {requests['measured']} requests answered"]
    if latency["ttft_ms"]["n"]:
        parts.append(f"first token after {latency['ttft_ms']['p50']:.1f} ms (p99 {latency['ttft_ms']['p99']:.1f})")
    if latency["tpot_ms"]["n"]:
        parts.append(f"{latency['tpot_ms']['p50']:.2f} ms per token after it")
    parts.append(f"{throughput['output_tokens_per_s']:,.0f} output tokens/s")
    if result.get("goodput"):
        parts.append(f"{result['goodput']['share']:.1%} met the targets")
    return ("Interrupted: " if result["interrupted"] else "") + "; ".join(parts) + "."


def _what(result: dict[str, Any]) -> str:
    return f"Load: {result['load']['text']}. Workload: {result['workload']}. Latencies count from the intended send time."


def _findings(result: dict[str, Any]) -> tuple[Note, ...]:
    notes = [Note(finding["level"], f"{finding['text']}.") for finding in result["audit"].get("findings", [])]
    notes.extend(Note("info", f"{text}.") for text in result["notes"])
    tokens = result["tokens"]
    if tokens["source"] != "usage":
        how = {"tokenizer": "a local count of the text", "chunks": "chunks, taken for tokens"}[tokens["source"]]
        notes.append(Note("warning", f"The server did not say how many tokens it wrote: totals are {how}."))
    if tokens["gaps"] != "one token a chunk":
        text = f"Chunks hold {tokens['per_chunk']:.1f} tokens: gaps between tokens are {tokens['gaps']}."
        notes.append(Note("info", text))
    if tokens["prompts_off_length"]:
        text = f"{tokens['prompts_off_length']} of {tokens['prompts_checked']} prompts did not have the asked number of tokens."
        notes.append(Note("warning", text))
    if result["workload"].startswith("plain") and tokens["cached"] > 0.1 * tokens["input"]:
        share = f"{tokens['cached'] / tokens['input']:.0%}"
        text = (
            f"{share} of the input came from the server's prefix cache: it has seen these prompts (another --seed makes new)."
        )
        notes.append(Note("warning", text))
    if tokens["answers_short_of_max"]:
        notes.append(
            Note("info", f"{tokens['answers_short_of_max']} answers ended before max_tokens (--ignore-eos asks for all).")
        )
    return tuple(notes)


def _key_figures(result: dict[str, Any]) -> Figures:
    latency, throughput = result["latency"], result["throughput"]
    figures = [
        Figure("TTFT p50", latency["ttft_ms"].get("p50"), "ms", "time to first token"),
        Figure("TTFT p99", latency["ttft_ms"].get("p99"), "ms"),
        Figure("TPOT p50", latency["tpot_ms"].get("p50"), "ms", "time per output token after the first"),
        Figure("output", throughput["output_tokens_per_s"], "tokens/s"),
    ]
    if result.get("goodput"):
        figures.append(Figure("goodput", result["goodput"]["share"] * 100, "%", "of requests met the targets"))
    return Figures(tuple(figures))


_WORDS = (
    "TTFT: intended send to the first chunk with text, reasoning or a tool call. TPOT: time per output token after the first "
    "chunk's. Chunk gap: what a reader sees. TTFT from the send leaves out what the client made the request wait; where it is "
    "much smaller than TTFT, the load could not be sent as planned."
)


def _latency_tables(result: dict[str, Any]) -> tuple[Table, Table, Text]:
    columns = (Column("ms"), Column("n"), Column("mean"), *(Column(q) for q in _QUANTILES), Column("max"))
    rows: list[tuple[Cell, ...]] = []
    intervals: list[tuple[Cell, ...]] = []
    for name, words in _NAMES.items():
        row = result["latency"][name]
        rows.append((words, row["n"], row.get("mean"), *(row.get(quantile) for quantile in _QUANTILES), row.get("max")))
        intervals.append((words, *(_interval(row, quantile) for quantile in ("mean", *_QUANTILES))))
    between = Table(
        "95 % intervals (none where there are too few requests for one)",
        (Column("ms"), Column("mean"), *(Column(q) for q in _QUANTILES)),
        tuple(intervals),
    )
    return Table("Latency", columns, tuple(rows)), between, Text(_WORDS)


def _interval(row: dict[str, Any], name: str) -> str | None:
    ends = row.get(f"{name}_interval")
    return f"{format_cell(ends[0])} – {format_cell(ends[1])}" if ends else None


def _latency_plots(result: dict[str, Any]) -> list[Plot]:
    plots = []
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        values = sorted(value for value in result["samples"][name] if value is not None)
        if len(values) < 2:
            continue
        places = sorted({round(i * (len(values) - 1) / _CURVE_POINTS) for i in range(_CURVE_POINTS + 1)})
        series = Series(
            name.removesuffix("_ms"), tuple(values[i] for i in places), tuple((i + 1) / len(values) * 100 for i in places)
        )
        words = f"Share of answers with a {_NAMES[name]} of at most so much; steep is even, a long tail is a few slow ones."
        plots.append(
            Plot(f"Distribution: {_NAMES[name]}", words, "ms", "answers (%)", (series,), kind="step", max_table_rows=20)
        )
    times, ttft = result["samples"]["start_s"], result["samples"]["ttft_ms"]
    pairs = [(at, value) for at, value in zip(times, ttft, strict=True) if value is not None]
    pairs = pairs[:: 1 + len(pairs) // 1000]
    if len(pairs) > 1:
        series = Series("request", tuple(at for at, _ in pairs), tuple(value for _, value in pairs))
        words = "Each point is a request at its intended send time; a stall or a growing queue shows as a ramp."
        plots.append(Plot("Time to first token over the run", words, "s", "ms", (series,), kind="scatter", max_table_rows=20))
    return plots


def _throughput_table(result: dict[str, Any]) -> Table:
    throughput = result["throughput"]
    rows: list[tuple[str, float | None]] = [
        ("output tokens/s", throughput["output_tokens_per_s"]),
        ("input tokens/s", throughput["input_tokens_per_s"]),
        ("answers/s (achieved)", throughput["requests_per_s"]),
        ("seconds measured", throughput["duration_s"]),
    ]
    if result["load"]["kind"] != "closed loop":
        rows.append(("requests/s (offered)", throughput.get("offered_per_s")))
    if result.get("goodput"):
        rows.append(("answers/s that met the targets", result["goodput"]["requests_per_s"]))
    title = f"Throughput, {throughput['window']}" if "window" in throughput else "Throughput"
    return Table(title, (Column("what"), Column("value")), tuple(rows))


def _requests_table(result: dict[str, Any]) -> Table:
    requests, tokens = result["requests"], result["tokens"]
    rows = [(name, requests[name]) for name in ("measured", "ok", "errors", "interrupted", "warmup", "without_text", "retried")]
    rows += [("input tokens", tokens["input"]), ("of these cached", tokens["cached"]), ("output tokens", tokens["output"])]
    return Table("Requests", (Column("what"), Column("count")), tuple(rows))


def _errors(result: dict[str, Any]) -> tuple[Table, ...]:
    errors = result["requests"]["by_error"]
    if not errors:
        return ()
    rows = tuple((kind, entry["count"], entry["example"]) for kind, entry in sorted(errors.items()))
    return (Table("Errors (not in any latency above)", (Column("kind"), Column("count"), Column("example")), rows),)


def _audit_table(result: dict[str, Any]) -> Table:
    audit = result["audit"]
    rows: list[tuple[str, float | str | None]] = [
        ("client CPU (% of one core)", audit["client_cpu_share"] * 100),
        ("client CPU in its busiest second (%)", audit["client_cpu_share_max"] * 100),
        ("event-loop lag p50 (ms)", audit["loop_lag_ms"]["p50"]),
        ("event-loop lag p99 (ms)", audit["loop_lag_ms"]["p99"]),
        ("event-loop lag max (ms)", audit["loop_lag_ms"]["max"]),
        ("send drift p50 (ms)", audit["drift_ms"]["p50"]),
        ("send drift p99 (ms)", audit["drift_ms"]["p99"]),
        ("send drift max (ms)", audit["drift_ms"]["max"]),
        ("steal (% of the machine)", None if audit["steal_share"] is None else audit["steal_share"] * 100),
        ("CPUs used by others", audit["others_cpus"]),
    ]
    return Table("The client during the run", (Column("what"), Column("value")), tuple(rows))


def _noise(result: dict[str, Any]) -> tuple[Table, ...]:
    """The smallest change of each metric that two runs like this one could tell from noise."""
    rows: list[tuple[Cell, ...]] = []
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        values = [value for value in result["samples"][name] if value is not None]
        if len(values) < least_count(QUANTILES["p50"]):
            continue
        draws = bootstrap(np.asarray(values), block_ids(len(values)), ["p50", "p99"], num_draws=200)
        # two runs, and 2.5 standard errors as in `compare`
        floors = [
            float(np.std(draws[q]) / np.mean(draws[q])) * 2.5 * 2**0.5 * 100
            if len(values) >= least_count(QUANTILES[q])
            else None
            for q in ("p50", "p99")
        ]
        rows.append((_NAMES[name], *floors))
    columns = (Column("metric"), Column("p50", "%", 1), Column("p99", "%", 1))
    return (Table("Noise floor: smallest change that two such runs can tell", columns, tuple(rows)),) if rows else ()


def _cost_table(cost: dict[str, Any]) -> Table:
    currency = cost["currency"]
    rows = (
        (f"input, {currency} per million tokens", cost["input_per_million"]),
        (f"output, {currency} per million tokens", cost["output_per_million"]),
        (f"both together, {currency} per million tokens", cost["blended_per_million"]),
        ("share of the time that is input (%)", cost["input_share"] * 100),
    )
    title = f"At {cost['price_per_hour']:g} {currency} an hour; tokens {cost['tokens_counted']}"
    return Table(title, (Column("what"), Column("value")), rows)


def _sweep_row(point: dict[str, Any]) -> tuple[Any, ...]:
    latency, throughput = point["latency"], point["throughput"]
    return (
        point["load"]["value"],
        throughput["output_tokens_per_s"],
        throughput["requests_per_s"],
        latency["ttft_ms"].get("p50"),
        latency["ttft_ms"].get("p99"),
        latency["tpot_ms"].get("p50"),
        latency["tpot_ms"].get("p99"),
        point["requests"]["error_rate"] * 100,
        point["stop"] or "",
    )


def _sweep_plot(title: str, load: str, unit: str, xs: tuple[float, ...], lines: dict[str, list[Any]]) -> Plot:
    series = []
    for name, values in lines.items():
        kept = [(x, float(y)) for x, y in zip(xs, values, strict=True) if y is not None]
        series.append(Series(name, tuple(x for x, _ in kept), tuple(y for _, y in kept)))
    return Plot(title, f"{title} at each load of the sweep.", load, unit, tuple(series), x_log=True)


def _facts(result: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    names = ("url", "model", "workload", "started_at", "version")
    facts = [(name.replace("_", " "), str(result[name])) for name in names]
    targets = ", ".join(f"{name} {value:g}" for name, value in result["targets"].items() if value is not None)
    return (*facts, ("targets", targets or "none"))
