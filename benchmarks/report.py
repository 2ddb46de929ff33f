"""Write the tables of a section into docs/benchmarks.md."""

import sys
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

from benchmarks.tables import WIDTH, Table, place
from softindex.evaluate.machine import machine

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def write(section: str, tables: list[Table], *more: str) -> None:
    """Print the tables and further Markdown, and put both between this section's marks in the page."""
    # Only the options that change what is measured, not where files are.
    sizes = [f"{name} {value}" for name, value in pairwise(sys.argv) if name in ("--items", "--large-items")]
    command = " ".join(["python -m benchmarks", section, *sizes])
    source = "\n".join(wrap(f"Measured with `{command}` on: {machine()}.", WIDTH))
    parts = [source, *(table.markdown() for table in tables), *more]
    body = "\n\n".join(parts)
    print(body, flush=True)
    place(PAGE, section, body)
