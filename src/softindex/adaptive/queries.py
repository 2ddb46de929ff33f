"""Queries as callers pass them: dense arrays, scipy.sparse rows, or (indices, values)."""

from __future__ import annotations

from typing import Any

import numpy as np

from softindex.arguments import FLOAT32, MAX_SQUARED_NORM, check_queries
from softindex.errors import InputError, show
from softindex.records import Floats

__all__ = ["MAX_SQUARED_NORM", "as_given", "check_given"]

OWNER = "these weights have"


def as_given(queries: Any, dim: int) -> Floats | None:
    """One float32 query (d,) as (1, d), neither copied nor checked: for native code that does both in one pass."""
    if type(queries) is not np.ndarray or queries.dtype is not FLOAT32 or queries.shape != (dim,):
        return None
    return queries[None] if queries.flags.c_contiguous and queries.flags.aligned else None


def check_given(queries: Any, dim: int) -> tuple[Floats, bool]:
    """Return queries (b, d) float32, and whether one 1-D query was given; sparse ones are filled with zeros."""
    if hasattr(queries, "tocsr"):
        return _from_scipy(queries, dim)
    if isinstance(queries, tuple) and len(queries) == 2 and getattr(queries[0], "dtype", np.dtype(float)).kind in "iu":
        return _from_pair(*queries, dim)
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
