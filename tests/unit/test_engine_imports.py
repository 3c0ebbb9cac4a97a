"""Arrows that import-linter cannot see: who imports the extension, and what a serving process must never import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import hasten

SOURCE = Path(hasten.__file__).parent


def importers_of(module: str) -> set[str]:
    """Dotted names of our modules that import `module`, at the top or inside a function."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if module in names:
                found.add(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    return found


def test_only_ops_and_the_native_executor_import_the_extension() -> None:
    importers = importers_of("hasten._kernels")
    assert "engine.native" in importers, "the search finds what is there"
    assert {name for name in importers if not name.startswith("ops.")} == {"engine.native"}


def test_the_python_api_imports_neither_torch_nor_transformers_nor_pydantic_nor_a_web_framework() -> None:
    program = (
        "import sys, hasten.llm, hasten.weights.registry\n"
        "print(sorted({'torch', 'transformers', 'pydantic', 'starlette', 'uvicorn', 'rich', 'cyclopts'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(SOURCE.parent)}, check=True)
    assert done.stdout.strip() == "[]"
