"""Read vectors and put them in cluster order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import BLOCK_VALUES, as_array, check_ids, check_matrix
from softindex.blocks import blocks, rows_per_block
from softindex.readers import read_file
from softindex.records import Floats, Integers, Report, Source

__all__ = ["WithBias", "read", "rearrange"]


@dataclass(frozen=True, slots=True)
class WithBias:
    """Vectors (n, d) with the bias (n,) as one more column, joined where rows are read: a copy would be as large."""

    vectors: NDArray[Any]
    bias: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d + 1)"""
        return len(self.vectors), self.vectors.shape[1] + 1

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice | Integers) -> Floats:
        """These rows (m, d + 1) float32, a new array."""
        part = self.vectors[rows]
        joined = np.empty((len(part), part.shape[1] + 1), np.float32)
        joined[:, :-1], joined[:, -1] = part, self.bias[rows]
        return joined


def read(source: Any, *, ids: Any = None, want_queries: bool = False, name: str = "vectors") -> Source:
    """Return the vectors (n, d) float32 or float16 and the ids of an array, a torch tensor or a path.

    Nothing is copied that already has the right dtype, and .npy, .safetensors and .fvecs stay on disk as
    memmaps.  `path::name` picks one array of a file with several.  ids, when given, win over those in the
    file; queries are those of an ann-benchmarks file, when wanted; name: what the caller calls the vectors.  The
    values are not looked at: that is for `check_vectors`.
    """
    queries = None
    if isinstance(source, (str, bytes, os.PathLike)):
        path = os.fsdecode(source)
        loaded = read_file(path, want_ids=ids is None, want_queries=want_queries)
        if loaded.queries is not None:
            queries = check_matrix(loaded.queries, f"the queries in {path}")
        vectors = check_matrix(loaded.vectors, f"the {name} in {path}")
        ids = loaded.ids if ids is None else ids
    else:
        vectors = check_matrix(as_array(source, name), name)
    return Source(vectors, check_ids(ids, len(vectors)), queries)


def rearrange(vectors: NDArray[Any] | WithBias, positions: NDArray[Any], *, report: Report | None = None) -> Floats:
    """Copy vectors (n, d) to float32 such that row i of the source is row positions[i] of the result.

    The source is read once from top to bottom, as a memmap wants it, and written where it belongs.
    """
    rows, dimensions = vectors.shape
    placed = np.empty((rows, dimensions), np.float32)
    for part in blocks(rows, rows_per_block(BLOCK_VALUES, dimensions)):
        placed[positions[part]] = vectors[part]
        if report is not None:
            report("ordering", part.stop, rows)
    return placed
