"""Walk over many rows in blocks, so that working memory does not grow with the number of items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["as_float32", "blocks", "rows_per_block"]

BLOCK_VALUES = 1 << 20
"""Values converted at a time."""


def blocks(n: int, step: int) -> Iterator[slice]:
    """The slices of at most `step` rows that cover rows 0 to n - 1, in order; none where n is 0."""
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def rows_per_block(values: int, width: int, *, least: int = 1) -> int:
    """The number of rows of `width` values each that together hold about `values` values; at least `least`."""
    return max(least, values // max(width, 1))


def as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers (n, d) rounded to float32 in a new array; those beyond its range become infinite."""
    rounded = np.empty(array.shape, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        for part in blocks(len(array), rows_per_block(BLOCK_VALUES, array.shape[1])):
            rounded[part] = array[part]
    return rounded
