"""`hasten models`: what is on this machine, and what can be fetched."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hasten.cli.terminal import size_text
from hasten.errors import ModelError
from hasten.weights import registry
from hasten.weights.gguf import GgufFile


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One line of the list. `bytes` is None for a model that is not here yet, `problem` says why a file cannot be used."""

    name: str  # the shortest word that `serve` takes for it
    file: str
    bytes: int | None
    format: str  # that of most weights: "q4_1"
    architecture: str
    parameters: int | None
    licence: str
    problem: str


def models(*, as_json: Annotated[bool, Parameter(name="--json", help="print the list as JSON", negative=())] = False) -> None:
    """List the models on this machine.

    They are in $HASTEN_HOME/models (~/.cache/hasten/models). Those that `hasten pull` can fetch by name are listed too.
    """
    rows = list_models()
    if as_json:
        print(json.dumps({"folder": str(registry.models_dir()), "models": [asdict(row) for row in rows]}, indent=1))
        return
    lines = [("MODEL", "FORMAT", "SIZE", "PARAMETERS", "ARCHITECTURE", "FILE"), *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        if row.problem:
            print(f"{row.name}: {row.problem}")
    print(f"folder: {registry.models_dir()}")


def list_models() -> list[ModelRow]:
    """Packaged models first, then the other files of the models folder by name."""
    files = {path.name: path for path in registry.local_files()}
    rows = []
    for alias, packaged in registry.PACKAGED.items():
        path = files.pop(packaged.file, None)
        if path is None:
            rows.append(ModelRow(alias, packaged.file, None, "", "", None, packaged.licence, ""))
        else:
            rows.append(_describe(alias, path, packaged.licence))
    return rows + [_describe(path.name, path, "") for path in files.values()]


def _describe(name: str, path: Path, licence: str) -> ModelRow:
    size = path.stat().st_size
    try:
        gguf = GgufFile(path)
    except ModelError as error:
        return ModelRow(name, path.name, size, "", "", None, licence, str(error))
    try:
        by_format: Counter[str] = Counter()
        parameters = 0
        for tensor in gguf.tensors.values():
            by_format[tensor.format] += tensor.num_bytes
            parameters += math.prod(tensor.shape)
        main_format = by_format.most_common(1)[0][0] if by_format else ""
        architecture = str(gguf.metadata.get("general.architecture", ""))
        return ModelRow(name, path.name, size, main_format, architecture, parameters, licence, "")
    finally:
        gguf.close()


def _cells(row: ModelRow) -> tuple[str, ...]:
    size = "to pull" if row.bytes is None else size_text(row.bytes)
    parameters = "" if row.parameters is None else f"{row.parameters / 1e6:.1f} M"
    return (row.name, row.format or ("?" if row.problem else ""), size, parameters, row.architecture, row.file)
