"""Read Parquet tables in blocks: a column of lists, or one column per dimension."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_matrix_shape
from softindex.errors import InputError
from softindex.notes import note_rounded
from softindex.readers.tables import Entry, Loaded, Request, choose, need

BATCH_ROWS = 8192
ID_COLUMNS = ("id", "ids")

Where = Callable[[int], str]
"""Names a row of the file, given its number in the block."""


def read_parquet(request: Request) -> Loaded:
    """Read vectors (n, d) float32 (float64 is rounded), and on request the column "id" or "ids"."""
    pyarrow = need("pyarrow", request.path)
    parquet = importlib.import_module("pyarrow.parquet")
    with parquet.ParquetFile(request.path) as table:
        columns = _vector_columns(pyarrow.types, table.schema_arrow, request)
        id_column = next((name for name in ID_COLUMNS if name in table.schema_arrow.names), None)
        if not request.want_ids or id_column in columns:
            id_column = None
        wanted = columns if id_column is None else [*columns, id_column]
        rows, filled = table.metadata.num_rows, 0
        vectors: NDArray[np.float32] | None = None
        id_parts: list[Any] = []
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
            parts = [batch.column(name) for name in columns]
            dimensions = None if vectors is None else vectors.shape[1]
            block = _block(pyarrow.types, parts, dimensions, partial(_row_name, request.path, filled))
            if vectors is None:
                check_matrix_shape((rows, block.shape[1]), f"the vectors in {request.path}")
                vectors = np.empty((rows, block.shape[1]), np.float32)
                if block.dtype not in (np.float32, np.float16):
                    note_rounded(f"the vectors in {request.path}", block.dtype.name)
            # A float64 beyond float32 becomes inf here; the check for NaN refuses it later and names its row.
            with np.errstate(over="ignore"):
                vectors[filled : filled + len(block)] = block
            filled += len(block)
            if id_column is not None:
                id_parts.append(_ids(pyarrow.types, batch.column(id_column)))
    if vectors is None or filled != rows:
        raise InputError(f"{request.path} holds {filled} rows; expected {max(rows, 1)}: write the file again.")
    return Loaded(vectors, _join(id_parts) if id_column is not None else None)


def _vector_columns(types: Any, schema: Any, request: Request) -> list[str]:
    """Return the list column that holds the vectors, or else every float column in order."""
    entries = {
        field.name: Entry(
            str(field.type),
            _is_list(types, field.type) and types.is_floating(field.type.value_type),
            _is_list(types, field.type) and types.is_integer(field.type.value_type),
        )
        for field in schema
    }
    if request.name is None and not any(entry.is_matrix for entry in entries.values()):
        floats = [f.name for f in schema if types.is_floating(f.type) and f.name not in ID_COLUMNS]
        if floats:
            return floats
    name = choose(request.path, entries, request.name)
    if not (entries[name].is_matrix or entries[name].is_counts):
        raise InputError(
            f"column {name!r} of {request.path} is {entries[name].description}; expected a list of numbers."
        )
    return [name]


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _block(types: Any, parts: list[Any], dimensions: int | None, where: Where) -> NDArray[Any]:
    """Return (rows, d) floats of any width; `dimensions` is that of earlier rows, None for the first block."""
    for part in parts:
        if part.null_count:
            row = int(np.flatnonzero(part.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(f"{where(row)} has no value in a vector column; drop or fill that row.")
    if not _is_list(types, parts[0].type):
        return np.stack([part.to_numpy(zero_copy_only=False) for part in parts], axis=1)
    lists = parts[0]
    fixed = types.is_fixed_size_list(lists.type)
    width = lists.type.list_size if fixed else _common_length(lists, dimensions, where)
    values = lists.flatten()
    if values.null_count:
        place = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{where(place // width)} has a vector with a missing value; drop or fill that row.")
    floats: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return floats.reshape(len(lists), width)


def _row_name(path: str, first_row: int, row: int) -> str:
    return f"row {first_row + row} of {path}"


def _common_length(lists: Any, dimensions: int | None, where: Where) -> int:
    lengths = np.diff(lists.offsets.to_numpy())
    expected = int(lengths[0]) if dimensions is None else dimensions
    wrong = np.flatnonzero(lengths != expected)
    if len(wrong):
        raise InputError(
            f"{where(int(wrong[0]))} has {lengths[wrong[0]]} dimensions but row 0 has {expected}; "
            "every vector needs the same number."
        )
    return expected


def _ids(types: Any, column: Any) -> Any:
    """Return integers as an array, anything else as Python values, which are checked later."""
    if types.is_integer(column.type) and not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    return column.to_pylist()


def _join(parts: list[Any]) -> Any:
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return list(chain.from_iterable(parts))
