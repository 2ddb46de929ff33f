"""What "pac" reads of a layer: its columns one after the other, and how much each row and column varies.

The numbers of a row that stand out in their columns are stored separately and always counted in full, since random
draws would almost never hit them.  Of the rest a query draws columns by importance: see native/adaptive/coordinates.h.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from softindex.adaptive.rows import Rows
from softindex.kernels import LANES, padded
from softindex.records import Doubles, Floats, Integers

__all__ = ["Columns", "transpose"]

HEAVY = 8
"""Numbers of each row that always count in full.  A row with few non-zeros is then known at once."""
LEAST = 1e-12
"""Part of a column's squares that stays when its heavy numbers are taken out: a column that has any number at all must
have some weight, however the difference is rounded."""
NORMAL = 3.0
"""The fourth moment of a normal number over the square of its second."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The weights (n, d) column by column, and statistics of rows and columns."""

    columns: Floats
    """(d, n) without the heavy numbers, which are zero here.  From sixteen rows on, n is padded to a multiple of it;
    below that a few columns of zeros follow, since each is read to sixteen numbers."""
    scales: Floats
    """(d padded to a multiple of sixteen) root mean square of each column, without heavy numbers."""
    heavy_columns: Integers
    """(n, 8) columns where each row is largest compared with other rows."""
    heavy: Floats
    """(n, 8) those numbers."""
    energies: Doubles
    """(n,) mean over columns of the row's square over the column's mean square: 1 for a row like the others."""
    excesses: Doubles
    """(n,) how far the variance of those ratios exceeds that of normal numbers, as in a row with few large ones."""
    norms: Doubles
    """(n,) lengths of the rows, rounded up."""

    def arrays(self) -> dict[str, Any]:
        """All of them by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def transpose(rows: Rows) -> Columns:
    """Make the copy of the rows that "pac" reads."""
    n, d = rows.n, rows.d
    squares, norms = np.zeros(d), np.empty(n)
    for begin, block in rows.blocks():
        squares += np.einsum("nd,nd->d", block, block, dtype=np.float64)
        norms[begin : begin + len(block)] = np.sqrt(np.einsum("nd,nd->n", block, block, dtype=np.float64))
    heavy_columns, heavy = _heavy(rows, squares)
    taken = np.zeros(d)
    np.add.at(taken, heavy_columns, np.square(heavy, dtype=np.float64))
    squares = np.maximum(squares - taken, LEAST * squares)
    scales = _zeros(1, padded(d))[0]
    scales[:d] = np.sqrt(squares / n)
    columns = _zeros(d, padded(n)) if n >= LANES else _zeros(d + -(-LANES // n), n)
    energies, excesses = np.empty(n), np.empty(n)
    # The scales as they are used: those of numbers below the range of float32 are zero, and so are such columns.
    means = np.square(scales[:d], dtype=np.float64)
    inverse = np.divide(1.0, means, out=np.zeros(d), where=means > 0)
    used = max(1, int((means > 0).sum()))
    for begin, block in rows.blocks():
        here = slice(begin, begin + len(block))
        rest = block.copy()
        np.put_along_axis(rest, heavy_columns[here], np.float32(0), axis=1)
        columns[:d, here] = rest.T
        relative = np.square(rest, dtype=np.float64) * inverse
        energies[here] = relative.sum(axis=1) / used
        excesses[here] = np.einsum("nd,nd->n", relative, relative) / used
    excesses = np.maximum(excesses - NORMAL * energies**2, 0.0)
    return Columns(columns, scales, heavy_columns, heavy, energies, excesses, norms * (1 + 2.0**-40))


def _zeros(n: int, d: int) -> Floats:
    """(n, d) zeros that begin with a cache line: sixteen numbers that lay across two would be read from both."""
    line, size = LANES * 4, n * d * 4
    memory = np.zeros(size + line, np.uint8)
    begin = -memory.ctypes.data % line
    return memory[begin : begin + size].view(np.float32).reshape(n, d)


def _heavy(rows: Rows, squares: Doubles) -> tuple[Integers, Floats]:
    """(n, 8) the columns where each row is largest compared with the others, and its numbers there."""
    n, d, kept = rows.n, rows.d, min(HEAVY, rows.d)
    inverse = np.divide(1.0, squares, out=np.zeros(d), where=squares > 0)
    heavy_columns, heavy = np.empty((n, kept), np.int64), np.empty((n, kept), np.float32)
    for begin, block in rows.blocks():
        here = slice(begin, begin + len(block))
        relative = np.square(block, dtype=np.float64) * inverse
        most = np.sort(np.argpartition(relative, d - kept, axis=1)[:, d - kept :], axis=1)
        heavy_columns[here], heavy[here] = most, np.take_along_axis(block, most, axis=1)
    return heavy_columns, heavy
