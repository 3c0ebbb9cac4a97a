"""Print requirement lines out of pyproject.toml, for `pip install -r`: arguments name groups.

`runtime` means the package's own dependencies, every other word an entry of [project.optional-dependencies].
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(groups: list[str]) -> int:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    known = {"runtime": project["dependencies"], **project["optional-dependencies"]}
    for group in groups:
        if group not in known:
            print(f"no such group: {group}; known are {', '.join(known)}", file=sys.stderr)
            return 2
        print("\n".join(known[group]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
