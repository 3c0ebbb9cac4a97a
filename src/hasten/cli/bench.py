"""`hasten bench`: load against any OpenAI-compatible server; `compare`, `import` and `metrics` beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from hasten import exit_codes
from hasten.bench.options import BenchOptions
from hasten.cli.options import key_to_send, options_of
from hasten.cli.terminal import note
from hasten.errors import UsageError

if TYPE_CHECKING:
    from hasten.bench.compare import Change
    from hasten.bench.session import Outcome
    from hasten.report import Report

    LoadOptions = BenchOptions
else:
    LoadOptions = options_of(BenchOptions)

# what compare tests where no gate names anything
_USUAL = ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "e2e_p50", "output_tokens_per_s", "error_rate")

bench = App(name="bench")
_DEFAULTS = LoadOptions()
_Path = Annotated[Path | None, Parameter(show_default=False)]
_Json = Annotated[bool, Parameter(name="--json", negative=(), help="print the result as one JSON object and nothing else")]


@bench.default
def load(
    url: str,
    /,
    *,
    options: LoadOptions = _DEFAULTS,
    output: _Path = None,
    raw: _Path = None,
    csv: _Path = None,
    report: _Path = None,
    as_json: _Json = False,
) -> int:
    """Load against any OpenAI-compatible server; a gate for CI.

    There is one user at a time unless --concurrency, --rate, --trace or --sweep says otherwise.

    Exit codes: 0 measured; 1 nothing answered, or the client was saturated; 130 Ctrl-C, with what there is so far.

    Args:
        url: the server, http://HOST:PORT.
        output: write the result as JSON, for `hasten bench compare`.
        raw: write every request's timestamps as JSONL; `hasten bench metrics` makes the result again from it.
        csv: write the latency table.
        report: write a report: .html, .md, .json or .svg.
    """
    from hasten.bench.session import run_bench

    values = _values(options)
    _check_paths(output, raw, csv, report)
    if values.sweep != "off" and raw is not None:
        raise UsageError("--raw holds one load, and a sweep has many: leave out one of them")
    if values.sweep != "off":
        return _sweep(url, values, output, csv, report, as_json)
    with _live(f"bench {url}", as_json) as shown:
        outcome = run_bench(url, values, *shown)
    if raw is not None:
        from hasten.bench.record import write_raw

        write_raw(raw, outcome.header, outcome.records)
    _write(outcome.result, output, csv, report)
    _show(outcome.result, as_json)
    return _ended(outcome)


@bench.command
def compare(
    a: Path,
    b: Path,
    /,
    *,
    fail_if_worse: Annotated[tuple[str, ...], Parameter(help="METRIC:PERCENT, for example ttft_p99:5%; repeatable")] = (),
    anyway: Annotated[bool, Parameter(negative=(), help="compare also runs of different workloads, loads or targets")] = False,
    report: _Path = None,
    as_json: _Json = False,
) -> int:
    """Is B worse than A beyond the noise? Exit codes: 0 no, 3 yes, 1 too few requests to tell, or not comparable.

    Args:
        a: JSON result of the run to compare with.
        b: JSON result of the run in question.
        report: write a report: .html, .md or .json.
    """
    from hasten.bench.compare import compare as test
    from hasten.bench.compare import incomparable, parse_gate, trustworthy
    from hasten.bench.result import read_json
    from hasten.bench.result_report import compare_report

    gates = [parse_gate(text) for text in fail_if_worse]
    results = (read_json(a), read_json(b))
    for path, result in zip((a, b), results, strict=True):
        reason = trustworthy(result)
        if reason is not None:
            note(f"hasten: {path} cannot be compared: {reason}")
            return exit_codes.FAILED
        if result.get("interrupted"):
            note(f"hasten: {path} was interrupted: it is compared as far as it got")
    different = incomparable(*results)
    if different is not None and not anyway:
        note(f"hasten: {a} and {b} cannot be compared: {different} (--anyway compares them)")
        return exit_codes.FAILED
    changes = [test(*results, gate) for gate in gates]
    if not gates:
        names = [name for name in _USUAL if _has(results, name)]
        changes = [test(*results, None, name, num_tests=len(names)) for name in names]
    made = compare_report(changes, str(a), str(b))
    if report is not None:
        _write_report(made, report)
    if as_json:
        print(json.dumps({"changes": [_plain(change) for change in changes]}, allow_nan=False))
    else:
        for change in changes:
            print(change.text)
    return _gate_code(changes) if gates else exit_codes.DONE


@bench.command(name="import")
def import_trace(
    file: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    kind: Annotated[str, Parameter(name="--format", help="mooncake, aiperf or auto")] = "auto",
    seed: Annotated[int, Parameter(help="decides the text that is made where a trace has only lengths")] = 0,
) -> int:
    """Convert a trace of another tool into ours, for --trace.

    Args:
        file: the other tool's JSONL.
        output: file to write.
    """
    from hasten.bench.convert import convert
    from hasten.bench.trace import write_trace

    notes: list[str] = []
    requests = convert(file, kind, seed=seed, notes=notes)
    write_trace(output, requests)
    for text in notes:
        note(text)
    note(f"{len(requests)} requests written to {output}")
    return exit_codes.DONE


@bench.command
def metrics(raw: Path, /, *, output: _Path = None, csv: _Path = None, report: _Path = None, as_json: _Json = False) -> int:
    """Make the result again from raw timestamps.

    Args:
        raw: JSONL written by --raw.
        output: write the result as JSON.
        csv: write the latency table.
        report: write a report: .html, .md, .json or .svg.
    """
    from hasten.bench.record import read_raw
    from hasten.bench.session import make_result

    result = make_result(*read_raw(raw))
    _write(result, output, csv, report)
    _show(result, as_json)
    return exit_codes.DONE


def _values(options: BenchOptions) -> BenchOptions:
    values = BenchOptions(**{field.name: getattr(options, field.name) for field in dataclasses.fields(BenchOptions)})
    # the variable may hold several keys, an option holds one
    asked = None if values.api_key == os.environ.get("HASTEN_API_KEY") else values.api_key
    return dataclasses.replace(values, api_key=key_to_send(asked))


def _check_paths(*paths: Path | None) -> None:
    """A run of an hour must not end at a folder that is not there."""
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {path.absolute().parent}")


@contextlib.contextmanager
def _live(title: str, as_json: bool) -> Any:
    """A live table on a terminal, nothing elsewhere: watcher and progress of `run_bench`."""
    if as_json or not os.isatty(2) or os.environ.get("TERM") == "dumb":
        yield ()
        return
    from hasten.bench.live import LiveTable

    with LiveTable(title) as table:
        yield table, table.making


def _sweep(url: str, values: BenchOptions, output: Path | None, csv: Path | None, report: Path | None, as_json: bool) -> int:
    from hasten.bench.session import run_bench
    from hasten.bench.sweep import Step, run_sweep

    def said(step: Step) -> None:
        throughput, latency = step.outcome.result["throughput"], step.outcome.result["latency"]
        ttft = latency["ttft_ms"].get("p50")
        first = "no answer" if ttft is None else f"TTFT p50 {ttft:.1f} ms"
        stop = f" – {step.stop}" if step.stop else ""
        note(f"{step.value:g}: {throughput['output_tokens_per_s']:,.0f} tokens/s, {first}{stop}")

    def measure(load: BenchOptions) -> Outcome:
        with _live(f"sweep {url}", as_json) as shown:
            return run_bench(url, load, *shown)

    result, _ = run_sweep(values, measure, said)
    _write(result, output, csv, report)
    _show(result, as_json)
    if result["interrupted"]:
        return exit_codes.INTERRUPTED
    saturated = result["stopped"] == "the client is saturated"
    if saturated:
        note("hasten: the client was saturated before the server: the last step describes the client")
    return exit_codes.FAILED if saturated or result["best"] is None else 0


def _report_of(result: dict[str, Any], *, plots: bool = True) -> Report:
    from hasten.bench.result import SWEEP_FORMAT
    from hasten.bench.result_report import result_report, sweep_report

    return (sweep_report if result["format"] == SWEEP_FORMAT else result_report)(result, plots=plots)


def _write(result: dict[str, Any], output: Path | None, csv: Path | None, report: Path | None) -> None:
    from hasten.bench.result import write_csv, write_json

    if output is not None:
        write_json(output, result)
    if csv is not None:
        write_csv(csv, result)
    if report is not None:
        _write_report(_report_of(result), report)


def _write_report(report: Report, path: Path) -> None:
    from hasten.report import write_report

    try:
        write_report(report, path)
    except ValueError as error:
        raise UsageError(f"--report: {error}") from None


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, allow_nan=False))
        return
    from hasten.report.terminal import print_report

    print_report(_report_of(result, plots=False))


def _ended(outcome: Outcome) -> int:
    if outcome.exit_code == exit_codes.FAILED:
        reasons = [] if outcome.result["requests"]["ok"] else ["no measured request was answered"]
        reasons += [finding["text"] for finding in outcome.result["audit"]["findings"] if finding["level"] == "error"]
        for reason in reasons:
            note(f"hasten: {reason}")
    return outcome.exit_code


def _has(results: tuple[dict[str, Any], dict[str, Any]], name: str) -> bool:
    """Both sides have samples of a metric."""
    if name == "error_rate":
        return True
    if name == "output_tokens_per_s":
        return all(result["requests"]["ok"] > 1 for result in results)
    return all(result["latency"][f"{name.rpartition('_')[0]}_ms"]["n"] for result in results)


def _plain(change: Change) -> dict[str, Any]:
    plain = {**dataclasses.asdict(change), "text": change.text}
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in plain.items()}


def _gate_code(changes: Sequence[Change]) -> int:
    verdicts = [change.verdict for change in changes]
    if "worse" in verdicts:
        print("hasten: the gate says no", file=sys.stderr)
        return exit_codes.GATE
    return exit_codes.FAILED if "cannot tell" in verdicts else 0
