"""Estimates of dot products from a few coordinates, drawn by importance and without replacement.

The numbers of a row that stand out in their columns are stored separately and always counted in full, since random
draws would almost never hit them.  The rest is stored in blocks of sixteen random columns.  A query draws blocks one
after the other, each with probability proportional to its weight w among those not drawn yet.  With y_r the product
over the r-th block, p_r its share of all weights and P_r the share of the blocks before it,

    t_r = y_1 + ... + y_(r-1) + y_r (1 - P_r) / p_r

is unbiased for the full product, whatever was drawn before it, and so no two t_r are correlated (Des Raj, 1956).
Their mean weighted by (1 - P_r)^-2 is the estimate; after the last block it is the product itself.

Numbers that were not drawn count too.  With e_c the square of a row's number over the mean square of its column, x_c
the query, W the sum of all w, and rho_c = d x_c^2 (mean square of c) / (W w), of mean one, the variance of t_1 is at
most W^2 times the mean of rho_c e_c, except for products of two columns, whose signs the random blocks mix.  That mean
is at most mean(e) + sd(rho) sd(e).  The share of var(e) that normal numbers have is left out: it is spread over many
columns, and shows in the blocks drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.adaptive.rows import Rows
from softindex.kernels import LANES, pull
from softindex.records import Doubles, Floats, Integers

__all__ = ["Pulled", "PulledRows", "permute"]

FIRST_ORDERED = 128
FEWEST_BETWEEN = 8
"""From this many blocks on, the spread between their terms counts too, not only that inside them."""
HEAVY = 8
"""Numbers of each row that always count in full: half a block.  A row with few non-zeros is then known at once."""


@dataclass(frozen=True, slots=True)
class PulledRows:
    """The rows in another order, sixteen columns at a time: blocks (d / 16, n, 16), padded with zeros."""

    blocks: Floats
    """Without the heavy numbers, which are zero here."""
    columns: Integers
    """(16 blocks,) the column at each place; d and above are padding."""
    heavy_columns: Integers
    """(n, 8) columns where each row is largest compared with other rows."""
    heavy: Floats
    """(n, 8) those numbers."""
    root_mean_squares: Floats
    """(16 blocks,) of the column at each place, relative to the largest."""
    energies: Doubles
    """(n,) mean over columns of the row's square over the column's mean square: 1 for a row like the others."""
    excesses: Doubles
    """(n,) how far the variance of those ratios exceeds that of normal numbers, as in a row with few large ones."""
    unit: float
    """The largest root mean square, which the others are relative to."""
    used: int
    """Columns that are not all zeros."""
    peaked: bool
    """Whether any row has an excess."""

    def place(self, query: Floats) -> Floats:
        """(blocks, 16) the numbers of a vector (d,) in the order of the columns, and zeros for padding."""
        missing = len(self.columns) - len(query)
        wide = np.concatenate([query, np.zeros(missing, np.float32)]) if missing else query
        # Every column exists: clipping skips the range check, which is twice as fast.
        return wide.take(self.columns, mode="clip").reshape(-1, LANES)

    def start(self, query: NDArray[Any], rng: np.random.Generator) -> Pulled:
        """Draw the order of the blocks for a query (d,), float32 or float64."""
        narrow = np.asarray(query, np.float32)
        places = self.place(narrow).reshape(-1)
        # Relative to its largest number, so that no square overflows float32.
        unit = float(max(narrow.max(), -narrow.min()))
        if unit != 1.0:
            places *= np.float32(1.0 / unit) if unit > 1e-38 else np.float32(0)
        scaled = (places * self.root_mean_squares).reshape(-1, LANES)
        weights = np.sqrt(np.einsum("bl,bl->b", scaled, scaled)).astype(np.float64)
        keys = rng.standard_exponential(len(weights))
        if float(weights.min()) > 0:
            keys /= weights
        else:
            # A block without weight holds only zeros, in the query or in every row.
            keys = np.divide(keys, weights, out=np.full(len(keys), np.inf), where=weights > 0)
        known = np.einsum("nh,nh->n", query.take(self.heavy_columns).astype(np.float64), self.heavy)
        expected, largest = self._predict(scaled, weights)
        return Pulled(self, places.reshape(-1, LANES), weights, keys, unit, known, expected, largest)

    def _predict(self, scaled: Floats, weights: Doubles) -> tuple[Doubles, Doubles]:
        """Upper estimates of the variance of a row's first term, and of the size of a single term; overwrites `scaled`.

        The terms are modelled as a sum of normal ones and of rare ones of one size, by their fourth moment.
        """
        total = float(weights.sum())
        square = (self.unit * total) ** 2
        if not total > 0 or not self.peaked:
            return square * self.energies, np.zeros(len(self.energies))
        squares = np.square(scaled, out=scaled)
        fourths = np.einsum("bl,bl->b", squares, squares).astype(np.float64)
        if not (used := weights > 0).all():
            fourths, weights = fourths[used], weights[used]
        fourths /= weights * weights
        spread = math.sqrt(max(0.0, self.used * float(fourths.sum()) / total**2 - 1.0))
        rare = float((fourths / weights).sum()) / total
        relative = self.energies + spread * np.sqrt(self.excesses)
        sizes = np.divide(rare * self.excesses, relative, out=np.zeros_like(relative), where=relative > 0)
        return square * relative, np.sqrt(square * sizes)


class Pulled:
    """Sums for each row and one query so far.  Rows may have had different numbers of blocks."""

    __slots__ = (
        "_expected", "_keys", "_known", "_largest", "_shares", "_squares", "_sums", "blocks", "counts", "drawn",
        "multiplications", "query", "rows", "scales", "state", "unit", "weights",
    )  # fmt: skip

    def __init__(
        self,
        rows: PulledRows,
        query: Floats,
        weights: Doubles,
        keys: Doubles,
        unit: float,
        known: Doubles,
        expected: Doubles,
        largest: Doubles,
    ) -> None:
        n = rows.blocks.shape[1]
        self.rows, self.query, self.unit = rows, query, unit
        self._keys, self._known, self._expected, self._largest = keys, known, expected, largest
        self._shares = weights / (float(weights.sum()) or 1.0)
        self.blocks = int(np.isfinite(keys).sum())
        """Blocks with any weight."""
        self.state = np.zeros((5, n))
        self.counts = np.zeros(n, np.int64)
        """(n,) blocks added to each row."""
        self.multiplications = rows.heavy.size
        self._order(FIRST_ORDERED)

    def _order(self, count: int) -> None:
        """Sort the first blocks by their keys, up to this count; most queries need no more."""
        if count < self.blocks:
            first = np.argpartition(self._keys, count)[:count]
            self.drawn = first[np.argsort(self._keys[first])]
        else:
            self.drawn = np.argsort(self._keys)[: self.blocks]
        shares = self._shares[self.drawn]
        before = np.concatenate([[0.0], np.cumsum(shares)[:-1]])
        left = np.maximum(1.0 - before, shares)
        self.scales, self.weights = left / np.where(shares > 0, shares, 1.0), left**-2.0
        self._sums = np.concatenate([[0.0], np.cumsum(self.weights)])
        self._squares = np.concatenate([[0.0], np.cumsum(self.weights**2)])

    def pull(self, arms: Integers, upto: int) -> None:
        """Add the blocks up to the upto-th to these rows; all of them have had the same number before."""
        begin = int(self.counts[arms[0]])
        end = min(upto, self.blocks)
        if end <= begin:
            return
        if end > len(self.drawn):
            self._order(4 * end)
        which = self.drawn[begin:end]
        queries = np.ascontiguousarray(self.query[which])
        here = slice(begin, end)
        pull(self.rows.blocks, which, queries, arms, self.scales[here], self.weights[here], self.state)
        self.counts[arms] = end
        self.multiplications += len(arms) * LANES * (end - begin)

    def estimate(self, arms: Integers) -> tuple[Doubles, Doubles, Doubles]:
        """Estimates of these rows' products, their variances, and how far one rare term may move them.

        The last two are 0 for a row that has had every block.  arms: increasing, each once.
        """
        # All rows in their order need no copy of the sums.
        here = slice(None) if len(arms) == len(self.counts) else arms
        counts = self.counts[here]
        parts = [*self.state[:, here], self._known[here], self._expected[here], self._largest[here]]
        if (least := int(counts.min())) == counts.max():
            # Numbers instead of arrays where all rows have had the same: every query passes here.
            return self._weigh(parts, least)
        found = np.zeros((3, len(counts)))
        for count in np.unique(counts).tolist():
            same = counts == count
            found[:, same] = self._weigh([part[same] for part in parts], count)
        return found[0], found[1], found[2]

    def _weigh(self, parts: list[Doubles], count: int) -> tuple[Doubles, Doubles, Doubles]:
        """The same for rows that have had this many blocks."""
        sums, first, second, third, noise, known, expected, largest = parts
        if count >= self.blocks:
            return self.unit * sums + known, np.zeros(len(sums)), np.zeros(len(sums))
        # A query without any weight has no blocks: everything is known at once.
        total, squares = float(self._sums[count]) or 1.0, float(self._squares[count])
        means = first / total
        variances = noise / total**2
        if count >= FEWEST_BETWEEN:
            # The same variance from the terms themselves; a few of them would say little.
            spread = np.maximum(third - 2 * means * second + means**2 * squares, 0.0) / total**2
            variances = np.maximum(variances, spread * (count / (count - 1)))
        # A sparse row shows only zeros for a long time, so the predicted variance counts as well.  The variance of t_r
        # is (1 - P_r)^2 times that of t_1, and a term counts most in the last of them.
        variances = np.maximum(variances, expected / total)
        jumps = largest * (math.sqrt(self.weights[max(count - 1, 0)]) / total)
        return self.unit * means + known, self.unit**2 * variances, self.unit * jumps


def permute(rows: Rows, seed: int) -> PulledRows:
    """Make the copy of the rows that pulls read, with columns in random order."""
    n, d = rows.n, rows.d
    count, kept = -(-d // LANES), min(HEAVY, rows.d)
    columns = np.random.default_rng(seed).permutation(count * LANES)
    squares: Any = np.zeros(d)
    for _, block in rows.blocks():
        squares += np.einsum("nd,nd->d", block, block, dtype=np.float64)
    means = np.sqrt(squares / n)
    unit = float(means.max()) or 1.0
    inverse = np.divide(n, squares, out=np.zeros(d), where=squares > 0)
    used = max(1, int((squares > 0).sum()))
    blocks = np.empty((count, n, LANES), np.float32)
    heavy_columns, heavy = np.empty((n, kept), np.int64), np.empty((n, kept), np.float32)
    energies, excesses = np.empty(n), np.empty(n)
    for begin, block in rows.blocks():
        here = slice(begin, begin + len(block))
        relative = np.square(block, dtype=np.float64) * inverse
        most = np.sort(np.argpartition(relative, d - kept, axis=1)[:, d - kept :], axis=1)
        heavy_columns[here], heavy[here] = most, np.take_along_axis(block, most, axis=1)
        np.put_along_axis(relative, most, 0.0, axis=1)
        energies[here] = relative.sum(axis=1) / used
        excesses[here] = np.einsum("nd,nd->n", relative, relative) / used
        wide = np.zeros((len(block), count * LANES), np.float32)
        wide[:, :d] = block
        np.put_along_axis(wide, most, 0.0, axis=1)
        blocks[:, here] = wide[:, columns].reshape(len(block), count, LANES).transpose(1, 0, 2)
    # Three is the fourth moment of a normal number over the square of its second.
    excesses = np.maximum(excesses - 3.0 * energies**2, 0.0)
    roots = np.zeros(count * LANES, np.float32)
    roots[:d] = means / unit
    peaked = bool(excesses.any())
    return PulledRows(blocks, columns, heavy_columns, heavy, roots[columns], energies, excesses, unit, used, peaked)
