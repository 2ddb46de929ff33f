"""Tables of measurements as Markdown, the machine they are from, and their place in a page."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from softindex.errors import InputError
from softindex.evaluate.output import check_output, write_output
from softindex.kernels import targets

__all__ = ["Table", "check_place", "machine", "place"]


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column names and rows of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table as Markdown, with a bold title."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return f"**{self.title}**\n\n" + "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
        )


def machine() -> str:
    """The processor, its cores and the software, in one line."""
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        model = found.group(1).strip() if found else model
    import faiss
    import numpy

    torch = ""
    with contextlib.suppress(PackageNotFoundError):
        torch = f", torch {version('torch')}"
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, kernels {targets()[0]}, "
        f"Python {platform.python_version()}, NumPy {numpy.__version__}, faiss {faiss.__version__}{torch}"
    )


def check_place(page: Path, section: str) -> tuple[str, str]:
    """What the page has before and after the marks of this section; InputError where they or the page cannot be had.

    A page that does not exist yet has nothing but the marks.
    """
    check_output(page)
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    try:
        text = page.read_text(encoding="utf-8") if page.exists() else f"{begin}\n{end}\n"
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{page} cannot be read as a page of text ({error}); name a Markdown file.") from error
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise InputError(f"{page} has no place for the section {section}; add the lines {begin} and {end}.")
    return before + begin, end + after


def place(page: Path, section: str, body: str) -> None:
    """Put the body between this section's marks in the page; the rest of the page stays."""
    before, after = check_place(page, section)
    write_output(page, f"{before}\n{body}\n{after}")
