"""Queries as callers pass them: dense arrays, scipy.sparse rows, or (indices, values)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from softindex.arguments import FLOAT32, MAX_SQUARED_NORM, check_queries
from softindex.errors import InputError, show
from softindex.records import Floats, Integers

__all__ = ["MAX_SQUARED_NORM", "Given", "SparseQueries", "as_given", "check_given", "is_plain"]

OWNER = "these weights have"


@dataclass(frozen=True, slots=True)
class SparseQueries:
    """Queries as native code reads them without filling in zeros."""

    offsets: Integers
    """(b + 1,) where each query begins."""
    columns: Integers
    """Increasing within a query."""
    values: Floats
    single: bool

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Integers) -> SparseQueries:
        """Some of the queries."""
        parts = [slice(self.offsets[row], self.offsets[row + 1]) for row in rows]
        offsets = np.concatenate([[0], np.cumsum([part.stop - part.start for part in parts])])
        columns, values = (np.concatenate([each[part] for part in parts]) for each in (self.columns, self.values))
        return SparseQueries(offsets, columns, values, self.single)


def as_sparse(queries: Any, dim: int) -> SparseQueries | None:
    """Sparse queries in order; None for others, and for wrong ones: `check_given` says what is wrong with them."""
    if hasattr(queries, "tocsr") and len(queries.shape) == 2 and queries.shape[0] > 0 and queries.shape[1] == dim:
        rows = queries.tocsr(copy=True)
        rows.sum_duplicates()
        return _sparse(rows.indptr, rows.indices, rows.data, single=False)
    if not _is_pair(queries):
        return None
    places, numbers = np.asarray(queries[0]), np.asarray(queries[1])
    if places.ndim != 1 or places.shape != numbers.shape or numbers.dtype.kind not in "fiu":
        return None
    if len(places) and not (places.min() >= 0 and places.max() < dim):
        return None
    columns, where = np.unique(places, return_inverse=True)
    sums = np.zeros(len(columns))
    # Like scipy.sparse, which adds numbers at the same index.
    np.add.at(sums, where, numbers)
    return _sparse([0, len(columns)], columns, sums, single=True)


def _sparse(offsets: Any, columns: Any, values: Any, *, single: bool) -> SparseQueries | None:
    if values.dtype.kind not in "fiu":
        return None
    with np.errstate(all="ignore"):
        small = np.asarray(values, np.float32)
        fits = np.square(small, dtype=np.float64).sum() <= MAX_SQUARED_NORM
    return SparseQueries(np.asarray(offsets, np.int64), np.asarray(columns, np.int64), small, single) if fits else None


def _is_pair(queries: Any) -> bool:
    return isinstance(queries, tuple) and len(queries) == 2 and getattr(queries[0], "dtype", FLOAT32).kind in "iu"


class Given(NamedTuple):
    """Queries for a call."""

    vectors: Floats
    """(b, d), or (b, 0) where `sparse` has them."""
    single: bool
    """Whether it is one query (d,)."""
    limit: float = math.inf
    """Largest square of a length, for native code to check."""
    sparse: SparseQueries | None = None


def is_plain(queries: Any, dim: int) -> bool:
    """Whether it is one float32 query (d,), which native code checks in the same pass in which it reads it."""
    if type(queries) is not np.ndarray or queries.dtype is not FLOAT32 or queries.shape != (dim,):
        return False
    flags = queries.flags
    return bool(flags.c_contiguous and flags.aligned)


def as_given(queries: Any, dim: int) -> Given | None:
    """Queries that native code takes as they are; None for others."""
    if type(queries) is np.ndarray:
        rows = queries if queries.ndim == 2 and len(queries) else queries[None]
        fits = queries.ndim <= 2 and queries.flags.c_contiguous and is_plain(rows[0], dim)
        return Given(rows, queries.ndim == 1, MAX_SQUARED_NORM) if fits else None
    sparse = as_sparse(queries, dim)
    return None if sparse is None else Given(np.empty((len(sparse), 0), np.float32), sparse.single, sparse=sparse)


def check_given(queries: Any, dim: int) -> tuple[Floats, bool]:
    """Return queries (b, d) float32, and whether one 1-D query was given; sparse ones are filled with zeros."""
    if hasattr(queries, "tocsr"):
        return _from_scipy(queries, dim)
    if _is_pair(queries):
        return _from_pair(queries[0], queries[1], dim)
    return check_queries(queries, dim, owner=OWNER)


def _from_scipy(queries: Any, dim: int) -> tuple[Floats, bool]:
    single = len(queries.shape) == 1
    if queries.shape[-1] != dim:
        raise InputError(
            f"sparse queries have {queries.shape[-1]} dimensions but {OWNER} {dim}; encode them with the same model."
        )
    return check_queries(queries.toarray().reshape(-1, dim), dim, owner=OWNER)[0], single


def _from_pair(indices: Any, values: Any, dim: int) -> tuple[Floats, bool]:
    places, numbers = np.asarray(indices), np.asarray(values)
    if places.ndim != 1 or places.shape != numbers.shape or numbers.dtype.kind not in "fiu":
        raise InputError(
            f"a sparse query has indices of shape {places.shape} and values of shape {numbers.shape}; expected two "
            "arrays of the same length, integers and floats."
        )
    wrong = places[(places < 0) | (places >= dim)]
    if len(wrong):
        raise InputError(f"a sparse query has index {show(int(wrong[0]))} but {OWNER} {dim} dimensions.")
    dense = np.zeros(dim)
    # Like scipy.sparse, which adds numbers at the same index.
    np.add.at(dense, places, numbers)
    return check_queries(dense[None], dim, owner=OWNER)[0], True
