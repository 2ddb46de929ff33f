"""Walk over many rows in blocks, so that working memory does not grow with the number of items."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["blocks", "rows_per_block"]


def blocks(n: int, step: int) -> Iterator[slice]:
    """The slices of at most `step` rows that cover rows 0 to n - 1, in order; none where n is 0."""
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def rows_per_block(values: int, width: int, *, least: int = 1) -> int:
    """The number of rows of `width` values each that together hold about `values` values; at least `least`."""
    return max(least, values // max(width, 1))
