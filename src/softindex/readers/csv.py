"""Read comma-separated values: one row per item, with a header and ids or without."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import rows_per_block
from softindex.errors import InputError, show
from softindex.notes import note
from softindex.readers.tables import BLOCK_VALUES, Loaded, Request

ID_COLUMNS = ("id", "ids", "")
"""Names of the column of ids in a header.  The index of a pandas table has no name."""
Line = tuple[int, list[str]]
"""The number of a line, and its fields."""


class _Layout(NamedTuple):
    """What the columns are: their number, and which of them has the ids."""

    columns: int
    ids: int | None
    names: list[str] | None

    @property
    def dimensions(self) -> int:
        return self.columns - (self.ids is not None)


def read_csv(request: Request) -> Loaded:
    """Read vectors (n, d) float32, one per line, and on request the ids.

    The first line is a header if one of its fields is not a number, or if it counts 0, 1, 2 and so on.  Ids are in the
    column that the header calls "id" or "ids" or does not name, otherwise in the first column if it holds no numbers.
    """
    path = request.path
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines: Iterator[Line] = filter(itemgetter(1), enumerate(csv.reader(file), 1))
        try:
            layout, lines = _layout(path, lines)
            ids, vectors = _parse(path, lines, layout)
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8; convert the file to UTF-8.") from error
    where = "no column" if layout.ids is None else f"column {layout.ids + 1}"
    note(f"read {len(vectors)} rows of {layout.dimensions} numbers from {path}, with the ids from {where}.")
    return Loaded(vectors, _integers(ids) if layout.ids is not None else None)


def _layout(path: str, lines: Iterator[Line]) -> tuple[_Layout, Iterator[Line]]:
    """The layout of the file, and the lines that hold data."""
    first, second = next(lines, None), next(lines, None)
    if first is None:
        raise InputError(f"{path} is empty; expected a line of numbers per item.")
    counting = [str(column) for column in range(len(first[1]))]
    headed = second is not None and (
        first[1] == counting or any(not _is_number(field) for field in first[1][1:]) or first[1][0] in ID_COLUMNS
    )
    sample = second if headed and second is not None else first
    names = first[1] if headed else None
    ids = next((column for column, name in enumerate(names or ()) if name.strip().lower() in ID_COLUMNS), None)
    if ids is None and not _is_number(sample[1][0]):
        ids = 0
    kept = ([] if headed else [first]) + ([] if second is None else [second])
    layout = _Layout(len(sample[1]), ids, names)
    if layout.dimensions < 1:
        raise InputError(f"line {sample[0]} of {path} holds no numbers; expected a line of numbers per item.")
    return layout, chain(kept, lines)


def _parse(path: str, lines: Iterator[Line], layout: _Layout) -> tuple[list[str], NDArray[np.float32]]:
    ids: list[str] = []
    rows, vectors = 0, np.empty((0, layout.dimensions), np.float32)
    # A number beyond float32 becomes inf here; the check for NaN refuses it later and names its row.
    with np.errstate(over="ignore"):
        for number, fields in lines:
            if len(fields) != layout.columns:
                raise InputError(
                    f"line {number} of {path} has {len(fields)} fields; expected {layout.columns}, as before."
                )
            if layout.ids is not None:
                ids.append(fields.pop(layout.ids))
            if rows == len(vectors):
                grown = max(2 * rows, rows_per_block(BLOCK_VALUES, layout.dimensions))
                vectors.resize((grown, layout.dimensions), refcheck=False)
            vectors[rows] = _numbers(path, number, fields)
            rows += 1
    vectors.resize((rows, layout.dimensions), refcheck=False)
    return ids, vectors


def _numbers(path: str, number: int, fields: list[str]) -> list[float]:
    try:
        return list(map(float, fields))
    except ValueError:
        wrong = next(field for field in fields if not _is_number(field))
        raise InputError(
            f"line {number} of {path} has {show(wrong)} where a number belongs; expected numbers, and ids in the first "
            "column or in one that the header calls id."
        ) from None


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _integers(ids: list[str]) -> list[int] | list[str]:
    """The ids as integers if all would be written the same way again."""
    try:
        numbers = list(map(int, ids))
    except ValueError:
        return ids
    return numbers if list(map(str, numbers)) == ids else ids
