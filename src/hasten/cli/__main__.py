"""`python -m hasten.cli`: the same as the `hasten` script."""

from __future__ import annotations

from hasten.cli import main

main()
