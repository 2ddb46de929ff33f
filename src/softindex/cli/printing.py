"""Results on standard output: JSON for programs, tables for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

__all__ = ["decimals", "print_draws", "print_json", "print_rows", "print_table", "written_error"]


def print_json(value: Any) -> None:
    """One object a line; NaN must have become null before."""
    typer.echo(json.dumps(value, allow_nan=False))


def _plain(value: Any) -> Any:
    """Arrays as lists, and NaN, which JSON does not know, as null."""
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
    """A table as wide as the terminal; as wide as it likes where there is none.

    spare: columns that a narrow terminal does without, in this order.
    """
    # Outside a terminal rich assumes 80 columns and cuts; a pipe has no width.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    heads, lines = list(columns), [[str(value) for value in row] for row in rows]
    for name in spare:
        if name in heads and _width(heads, lines) > console.width:
            place = heads.index(name)
            heads, lines = heads[:place] + heads[place + 1 :], [line[:place] + line[place + 1 :] for line in lines]
    table = Table(title=title, title_justify="left")
    for head in heads:
        # A head may be broken at its spaces; a narrow terminal breaks an id, and cuts none.
        table.add_column(head.replace(" ", "\n"), justify="right", overflow="fold")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def _width(heads: list[str], lines: list[list[str]]) -> int:
    """Columns that a table takes: its widest cells, with a rule and a space on either side."""
    words = [max(len(word) for word in head.split() or [""]) for head in heads]
    widest = [max([word, *(len(line[place]) for line in lines)]) for place, word in enumerate(words)]
    return sum(widest) + 3 * len(heads) + 1


def print_rows(result: Any, names: Iterable[str], count: int, told: dict[str, Any]) -> None:
    """One JSON object per query, with its part of each named field."""
    for row in range(count):
        print_json({"query": row, **{name: _plain(getattr(result, name)[row]) for name in names}, **told})


def print_draws(
    title: str, ids: NDArray[Any], columns: dict[str, list[list[str]]], told: dict[str, list[str]] | None = None
) -> None:
    """One line per result, the queries one after the other.

    columns: a value per result; told: a value per query, shown beside its first result.
    """
    once = told or {}
    rows = (
        (
            row,
            identity,
            *(values[row][place] for values in columns.values()),
            *(values[row] if place == 0 else "" for values in once.values()),
        )
        for row, found in enumerate(ids)
        for place, identity in enumerate(found)
    )
    print_table(title, ("query", "id", *columns, *once), rows)


def decimals(values: NDArray[Any]) -> list[list[str]]:
    """Four decimals of each."""
    # Adding zero turns -0.0 into 0.0.
    return [[f"{value + 0.0:.4f}" for value in row] for row in values]


def written_error(value: float | None) -> str:
    """An error to two digits, and a dash where none is stated."""
    return "-" if value is None or np.isnan(value) else f"{value:.2g}"
