"""Everything that a command prints: JSON for programs, tables and sentences for people, errors on stderr.

No other module of the command line writes, so names from files cannot reach the terminal unescaped.
"""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from softindex.errors import printable

__all__ = [
    "decimals",
    "print_draws",
    "print_error",
    "print_json",
    "print_line",
    "print_paragraph",
    "print_rows",
    "print_table",
    "written_error",
]


def print_json(value: Any) -> None:
    """Print one object on one line.  The value must not contain NaN, which JSON does not have."""
    typer.echo(json.dumps(value, allow_nan=False))


def print_line(text: str) -> None:
    """Print the text as one line."""
    typer.echo(printable(text))


def print_paragraph(text: str) -> None:
    """Print the text in lines of 80 characters at most."""
    typer.echo(textwrap.fill(printable(text), 80))


def print_error(sentence: object) -> None:
    """Print what went wrong as one line on stderr."""
    # Where stderr is closed or full, the exit code still says it.
    with contextlib.suppress(OSError):
        if sys.stderr is not None:
            typer.echo(f"softindex: {printable(str(sentence))}", err=True)


def _cell(value: Any) -> Text:
    """The value as it is: ids and paths are data, and rich would read "[red]" or ":smile:" in a string as markup."""
    return Text(printable(str(value)))


def _plain(value: Any) -> Any:
    """Arrays become lists, and NaN and infinity become null."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def print_table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]], *, spare: Iterable[str] = ()
) -> None:
    """Print a table as wide as the terminal, or 200 columns in a pipe.

    `spare` names columns to drop, in this order, where the terminal is too narrow.
    """
    # Outside a terminal rich assumes 80 columns and cuts; a pipe has no width.
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    heads, lines = list(columns), [[_cell(value) for value in row] for row in rows]
    for name in spare:
        if name in heads and _width(heads, lines) > console.width:
            place = heads.index(name)
            heads, lines = heads[:place] + heads[place + 1 :], [line[:place] + line[place + 1 :] for line in lines]
    table = Table(title=_cell(title), title_justify="left")
    for head in heads:
        # Heads break at spaces, and a narrow terminal folds an id instead of cutting it.
        table.add_column(Text("\n".join(head.split())), justify="right", overflow="fold")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def _width(heads: list[str], lines: list[list[Text]]) -> int:
    """The width of a table: its widest cells, each with a rule and a space on either side."""
    words = [max(len(word) for word in head.split() or [""]) for head in heads]
    widest = [max([word, *(line[place].cell_len for line in lines)]) for place, word in enumerate(words)]
    return sum(widest) + 3 * len(heads) + 1


def print_rows(result: Any, names: Iterable[str], count: int, shared: dict[str, Any]) -> None:
    """Print one JSON object per query: its row of each named field, and what all queries share."""
    for row in range(count):
        print_json({"query": row, **{name: _plain(getattr(result, name)[row]) for name in names}, **shared})


def print_draws(
    title: str, ids: NDArray[Any], columns: dict[str, list[list[str]]], per_query: dict[str, list[str]]
) -> None:
    """Print one line per result, query after query.

    `columns` has one value per result; `per_query` has one per query, shown beside its first result.
    """
    rows = (
        (
            row,
            identity,
            *(values[row][place] for values in columns.values()),
            *(values[row] if place == 0 else "" for values in per_query.values()),
        )
        for row, results in enumerate(ids)
        for place, identity in enumerate(results)
    )
    print_table(title, ("query", "id", *columns, *per_query), rows)


def decimals(values: NDArray[Any]) -> list[list[str]]:
    """Each value with four decimals."""
    # Adding zero turns -0.0 into 0.0.
    return [[f"{value + 0.0:.4f}" for value in row] for row in values]


def written_error(value: float | None) -> str:
    """An error with two digits, or a dash where none is reported."""
    return "-" if value is None or np.isnan(value) else f"{value:.2g}"
