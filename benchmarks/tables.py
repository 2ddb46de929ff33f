"""Tables of measurements as Markdown, and their place in a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from softindex.errors import InputError
from softindex.evaluate.output import check_output, write_output

__all__ = ["WIDTH", "Table", "check_place", "place"]

WIDTH = 120
"""Of a line of prose."""


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column names and rows of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table as Markdown, with a bold title."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        title = "\n".join(wrap(f"**{self.title}**", WIDTH, break_on_hyphens=False))
        return f"{title}\n\n" + "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
        )


def check_place(page: Path, section: str) -> tuple[str, str]:
    """The text of the page before and after the marks of this section; InputError where it cannot be written.

    A page that does not exist yet consists of the marks alone.
    """
    check_output(page)
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    try:
        text = page.read_text(encoding="utf-8") if page.exists() else f"{begin}\n{end}\n"
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{page} cannot be read as text ({error}); name a Markdown file.") from error
    before, opening, rest = text.partition(begin)
    _, closing, after = rest.partition(end)
    if not (opening and closing):
        raise InputError(f"{page} has no place for the section {section}; add the lines {begin} and {end}.")
    return before + begin, end + after


def place(page: Path, section: str, body: str) -> None:
    """Replace the text between this section's marks; the rest of the page stays."""
    before, after = check_place(page, section)
    write_output(page, f"{before}\n{body}\n{after}")
