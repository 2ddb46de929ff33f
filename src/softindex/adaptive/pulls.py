"""Estimates of dot products from a few coordinates, drawn by importance and without replacement.

Columns stand in blocks of sixteen, one from each sixteenth of them, shifted at random against each other, so that
neighbours part.  A query draws blocks one after the other, each with a chance in proportion to its weight w among
those not drawn yet.  With y_r the product over the r-th block, p_r its share of all
weights and P_r the share of the blocks before it,

    t_r = y_1 + ... + y_(r-1) + y_r (1 - P_r) / p_r

is unbiased for the whole product, whatever was drawn before it, and so no two t_r are correlated (Des Raj, 1956).
Their mean weighted by (1 - P_r)^-2 is the estimate; after the last block it is the product itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softindex.adaptive.rows import Rows
from softindex.kernels import LANES, pull
from softindex.records import Doubles, Floats, Integers

__all__ = ["Pulled", "PulledRows", "permute"]

FIRST_ORDERED = 128
FEWEST_BETWEEN = 8
"""From so many blocks on, the spread of their terms is looked at too, and not only that inside them."""


@dataclass(frozen=True, slots=True)
class PulledRows:
    """The rows again, sixteen columns after the other: blocks (d / 16, n, 16), padded with zeros."""

    blocks: Floats
    shifts: Integers
    """(16,) by how much each sixteenth of the columns is shifted."""
    root_mean_squares: Floats
    """(16 blocks,) of each column, in the order in which they stand, over the largest."""
    energies: Doubles
    """(n,) mean over the columns of a row's squares over those of its column: 1 for a row like the others."""
    unit: float
    """What the root mean squares are over."""

    def place(self, query: Floats) -> Floats:
        """(blocks, 16) the numbers of a vector (d,) where the columns stand, and zeros where there is none."""
        count = len(self.blocks)
        wide = np.zeros(count * LANES, np.float32)
        wide[: len(query)] = query
        placed = np.empty((count, LANES), np.float32)
        for lane, (part, shift) in enumerate(zip(wide.reshape(LANES, count), self.shifts.tolist(), strict=True)):
            placed[: count - shift, lane], placed[count - shift :, lane] = part[shift:], part[:shift]
        return placed

    def start(self, query: Doubles, rng: np.random.Generator) -> Pulled:
        """Draw the order of the blocks for a query (d,)."""
        narrow = query.astype(np.float32)
        places = self.place(narrow).reshape(-1)
        # Over its largest number, so that no square of it leaves float32.
        unit = float(max(narrow.max(), -narrow.min()))
        places *= np.float32(1.0 / unit) if unit > 1e-38 else np.float32(0)
        scaled = (places * self.root_mean_squares).reshape(-1, LANES)
        weights = np.sqrt(np.einsum("bl,bl->b", scaled, scaled))
        # A block without weight holds nothing but zeros, in the query or in every row.
        keys = np.full(len(weights), np.inf)
        np.divide(rng.standard_exponential(len(weights)), weights, out=keys, where=weights > 0)
        return Pulled(self, places.reshape(-1, LANES), weights.astype(np.float64), keys, unit)


class Pulled:
    """What is known of each row for one query.  Rows may have had different numbers of blocks."""

    __slots__ = (
        "_expected", "_keys", "_shares", "_squares", "_sums", "blocks", "counts", "drawn", "multiplications", "query",
        "rows", "scales", "state", "unit", "weights",
    )  # fmt: skip

    def __init__(self, rows: PulledRows, query: Floats, weights: Doubles, keys: Doubles, unit: float) -> None:
        n = rows.blocks.shape[1]
        self.rows, self.query, self.unit = rows, query, unit
        self._keys = keys
        total = float(weights.sum())
        self._shares = weights / (total or 1.0)
        self._expected = rows.energies * (rows.unit * total) ** 2
        self.blocks = int(np.isfinite(keys).sum())
        """Blocks that there are to draw."""
        self.state = np.zeros((5, n))
        self.counts = np.zeros(n, np.int64)
        """(n,) blocks that each row has had."""
        self.multiplications = 0
        self._order(FIRST_ORDERED)

    def _order(self, count: int) -> None:
        """Put the first so many blocks, or all, into the order of their keys; most queries need no more."""
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
        """Give these rows the blocks up to the upto-th; all of them have had the same number before."""
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

    def estimate(self, arms: Integers) -> tuple[Doubles, Doubles]:
        """Estimates of these rows' products and their variances, 0 for a row that has had every block.

        arms: increasing, each once.
        """
        # All rows in their order need no copy of what is known of them.
        here = slice(None) if len(arms) == len(self.counts) else arms
        sums, first, second, third, noise = self.state[:, here]
        counts = self.counts[here]
        if (least := int(counts.min())) == counts.max():
            # Numbers instead of arrays, where all have had the same: this is on the way of every query.
            if least >= self.blocks:
                return self.unit * sums, np.zeros(len(sums))
            return self._weigh(first, second, third, noise, self._expected[here], count=least)
        means, variances = np.zeros(len(sums)), np.zeros(len(sums))
        for count in np.unique(counts).tolist():
            same = counts == count
            if count >= self.blocks:
                means[same] = self.unit * sums[same]
            else:
                parts = [part[same] for part in (first, second, third, noise, self._expected[here])]
                means[same], variances[same] = self._weigh(*parts, count=count)
        return means, variances

    def _weigh(
        self, first: Doubles, second: Doubles, third: Doubles, noise: Doubles, expected: Doubles, *, count: int
    ) -> tuple[Doubles, Doubles]:
        """Means and variances of rows that have had so many blocks."""
        # A query without any weight has no block to wait for: all is known at once.
        total, squares = float(self._sums[count]) or 1.0, float(self._squares[count])
        means = first / total
        variances = noise / total**2
        if count >= FEWEST_BETWEEN:
            # The same variance from the terms themselves; few of them would tell little.
            spread = np.maximum(third - 2 * means * second + means**2 * squares, 0.0) / total**2
            variances = np.maximum(variances, spread * (count / (count - 1)))
        # A sparse row shows nothing but zeros for long: what its length leads to expect counts as well. With y^2 in a
        # block about the energy of the row times w^2, the variance of t_r is (1 - P_r)^2 energy (sum of w)^2.
        variances = np.maximum(variances, expected / total)
        return self.unit * means, self.unit**2 * variances


def permute(rows: Rows, seed: int) -> PulledRows:
    """Make the copy of the rows that pulls read."""
    n, d = rows.n, rows.d
    count = -(-d // LANES)
    shifts = np.random.default_rng(seed).integers(count, size=LANES)
    columns = (np.arange(count)[:, None] + shifts) % count + count * np.arange(LANES)
    blocks = np.zeros((count, n, LANES), np.float32)
    squares = np.zeros(count * LANES)
    for begin, block in rows.blocks():
        wide = np.zeros((len(block), count * LANES), np.float32)
        wide[:, :d] = block
        blocks[:, begin : begin + len(block)] = (
            wide[:, columns.ravel()].reshape(len(block), count, LANES).transpose(1, 0, 2)
        )
        squares += np.einsum("nd,nd->d", wide, wide, dtype=np.float64)
    means = np.sqrt(squares / n)
    unit = float(means.max()) or 1.0
    inverse = np.divide(n, squares, out=np.zeros_like(squares), where=squares > 0)[:d]
    energies = np.zeros(n)
    for begin, block in rows.blocks():
        wide_block = block.astype(np.float64)
        energies[begin : begin + len(block)] = (wide_block * wide_block) @ inverse / max(1, int((squares > 0).sum()))
    roots = (means / unit).astype(np.float32)[columns.ravel()]
    return PulledRows(blocks, shifts, roots, energies, unit)
