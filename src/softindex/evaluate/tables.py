"""Tables of measurements as Markdown, the machine they are from, and their place in a page."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softindex.errors import InputError
from softindex.evaluate.output import write_output
from softindex.kernels import targets

__all__ = ["Table", "machine", "place"]


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column names and rows of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

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

    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, kernels {targets()[0]}, "
        f"Python {platform.python_version()}, NumPy {numpy.__version__}, faiss {faiss.__version__}"
    )


def place(page: Path, section: str, body: str) -> None:
    """Put the body between this section's markers in the page; the rest of the page stays."""
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    text = page.read_text(encoding="utf-8") if page.exists() else f"{begin}\n{end}\n"
    if begin not in text or end not in text:
        raise InputError(f"{page} has no place for the section {section}; add the lines {begin} and {end}.")
    before, rest = text.split(begin, 1)
    _, after = rest.split(end, 1)
    write_output(page, f"{before}{begin}\n{body}\n{end}{after}")
