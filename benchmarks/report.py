"""Puts the tables of a section in their place in docs/benchmarks.md."""

import sys
from itertools import pairwise
from pathlib import Path

from softindex.evaluate.tables import Table, machine, place

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def write(section: str, tables: list[Table], *more: str) -> None:
    """Print the tables, and more Markdown after them, and replace what the page has between this section's marks."""
    # What was measured, not where its files lay.
    sizes = [f"{name} {value}" for name, value in pairwise(sys.argv) if name in ("--items", "--large-items")]
    command = " ".join(["python -m benchmarks", section, *sizes])
    parts = [f"Measured with `{command}` on: {machine()}.", *(table.markdown() for table in tables), *more]
    body = "\n\n".join(parts)
    print(body, flush=True)
    place(PAGE, section, body)
