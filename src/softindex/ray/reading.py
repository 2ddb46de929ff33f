"""Reads the parts of a distributed build in its tasks: shapes, samples, and the rows of a shard with their biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_per_item, check_vectors
from softindex.errors import InputError, show
from softindex.ray.needed import need
from softindex.records import Floats
from softindex.vectors import WithBias, read

__all__ = ["Piece", "Rows", "draw_sample", "read_pieces", "read_shape"]

Piece = tuple[str, int, int, int]
"""A file, the rows of it that a shard holds (from, to), and the number of its first row among all."""
Rows = tuple[Floats, Any, dict[str, Floats]]
"""The vectors and ids of a shard, and its biases by their names in `softindex.build`."""


def read_shape(file: str) -> tuple[int, int]:
    """Rows and dimensions of a file; 0 dimensions where only reading it would tell."""
    if file.endswith(".parquet"):
        return int(need("pyarrow.parquet").read_metadata(file).num_rows), 0
    vectors = read(file).vectors
    return vectors.shape[0], vectors.shape[1]


def draw_sample(file: str, share: float, seed: tuple[int, int], columns: Mapping[str, str]) -> Floats:
    """Random rows of one file, as they are clustered: a bias is one more dimension."""
    vectors = read(file).vectors
    rows = np.sort(np.random.default_rng(seed).choice(len(vectors), max(1, round(share * len(vectors))), replace=False))
    sample = np.asarray(vectors[rows], np.float32)
    try:
        check_vectors(sample)
    except InputError:
        # The same again, with the number of the row in the file.
        check_vectors(vectors, name=f"vectors in {file}")
    if "bias" not in columns:
        return sample
    return WithBias(sample, _read_column(file, columns["bias"], "bias")[rows])[:]


def read_pieces(part: list[Piece], columns: Mapping[str, str]) -> Rows:
    """The rows of a shard; files are read one at a time."""
    vectors: NDArray[np.float32] | None = None
    ids: list[Any] = []
    biases: dict[str, list[Floats]] = {name: [] for name in columns}
    rows, filled = sum(high - low for _, low, high, _ in part), 0
    for file, low, high, first in part:
        source = read(file)
        found = source.vectors[low:high]
        if vectors is None:
            vectors = np.empty((rows, found.shape[1]), np.float32)
        if found.shape[1] != vectors.shape[1]:
            raise InputError(
                f"{file} has {found.shape[1]} dimensions but others have {vectors.shape[1]}; leave it out."
            )
        check_vectors(found, name=f"vectors in {file}" + (f" from row {low} on" if low else ""))
        vectors[filled : filled + len(found)] = found
        filled += len(found)
        ids.append(np.arange(first + low, first + high) if source.ids is None else source.ids[low:high])
        for name, column in columns.items():
            biases[name].append(_read_column(file, column, name)[low:high])
    kinds = {one.dtype.kind for one in ids}
    if len(kinds) > 1:
        raise InputError("some files have string ids and others integers; use one kind.")
    assert vectors is not None
    return vectors, np.concatenate(ids), {name: np.concatenate(parts) for name, parts in biases.items()}


def _read_column(file: str, column: str, name: str) -> Floats:
    """(n,) one number for each row of a Parquet file."""
    if not file.endswith(".parquet"):
        raise InputError(f"{name} is a column of Parquet files or of a dataset, and {file} is neither; leave it out.")
    types = need("pyarrow").types
    with need("pyarrow.parquet").ParquetFile(file) as table:
        kinds = {field.name: field.type for field in table.schema_arrow}
        if column not in kinds:
            raise InputError(f"{file} has no column {show(column)} for {name}; it has {', '.join(sorted(kinds))}.")
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        if not any(check(kind) for check in lists for kind in kinds.values()):
            # Without a column of lists every column of floats is a dimension, and so is this one.
            raise InputError(f"{file} has one column per dimension, which {name} would be too; use a column of lists.")
        found = table.read([column])[column]
    if found.null_count:
        raise InputError(f"column {show(column)} of {file} has rows without a value; fill them.")
    numbers = check_per_item(found.to_numpy(), len(found), name=f"{name} in {file}", of="row")
    assert numbers is not None
    return numbers
