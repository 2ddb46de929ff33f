"""Turns measurements into Markdown tables and puts them in their place in docs/benchmarks.md."""

import os
import platform
import re
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Table:
    """A title, column names and rows of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table as Markdown, with a bold title."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return f"**{self.title}**\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in lines)


def machine() -> str:
    """The processor, its cores and the software, in one line."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        model = found.group(1).strip() if found else model
    import faiss
    import numpy

    from softindex.kernels import _native

    cores = len(os.sched_getaffinity(0))
    return (
        f"{model}, {cores} cores, kernels {_native.targets()[0]}, Python {platform.python_version()}, "
        f"NumPy {numpy.__version__}, faiss {faiss.__version__}"
    )


def write(section: str, tables: list[Table]) -> None:
    """Print the tables and replace the part of the page between this section's markers."""
    # What was measured, not where its files lay.
    sizes = [f"{name} {value}" for name, value in pairwise(sys.argv) if name in ("--items", "--large-items")]
    command = " ".join(["python -m benchmarks", section, *sizes])
    body = f"Measured with `{command}` on: {machine()}.\n\n" + "\n\n".join(table.markdown() for table in tables)
    print(body, flush=True)
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    page = PAGE.read_text()
    if begin not in page:
        raise SystemExit(f"{PAGE} has no place for the section {section}: add {begin} and {end}.")
    before, rest = page.split(begin, 1)
    _, after = rest.split(end, 1)
    PAGE.write_text(f"{before}{begin}\n{body}\n{end}{after}")
