"""Estimates of dot products from a few coordinates, drawn by importance and without replacement.

Columns stand in random order and in blocks of sixteen.  A query draws blocks one after the other, each with a chance in
proportion to its weight w among those not drawn yet.  With y_r the product over the r-th block, p_r its share of all
weights and P_r the share of the blocks before it,

    t_r = y_1 + ... + y_(r-1) + y_r (1 - P_r) / p_r

is unbiased for the whole product, whatever was drawn before it, and so no two t_r are correlated (Des Raj, 1956).
Their mean weighted by (1 - P_r)^-2 is the estimate; after the last block it is the product itself.
"""

from __future__ import annotations

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
"""From so many blocks on, the spread of their terms is looked at too, and not only that inside them."""


@dataclass(frozen=True, slots=True)
class PulledRows:
    """The rows again, column after column in random order: blocks (d / 16, n, 16), padded with zeros."""

    blocks: Floats
    order: NDArray[Any]
    """(d,) the column that stands at each place."""
    root_mean_squares: Floats
    """(16 blocks,) of each column, in the order in which they stand."""

    def start(self, query: Doubles, rng: np.random.Generator) -> Pulled:
        """Draw the order of the blocks for a query (d,)."""
        places = np.zeros(len(self.blocks) * LANES, np.float32)
        np.take(query.astype(np.float32), self.order, out=places[: len(self.order)])
        scaled = (places * self.root_mean_squares).reshape(-1, LANES)
        weights = np.sqrt(np.einsum("bl,bl->b", scaled, scaled))
        # A block without weight holds nothing but zeros, in the query or in every row.
        keys = np.full(len(weights), np.inf)
        np.divide(rng.standard_exponential(len(weights)), weights, out=keys, where=weights > 0)
        return Pulled(self, places.reshape(-1, LANES), weights.astype(np.float64), keys)


class Pulled:
    """What is known of each row for one query.  Rows may have had different numbers of blocks."""

    __slots__ = (
        "_keys", "_shares", "_squares", "_sums", "blocks", "counts", "drawn", "multiplications", "query", "rows",
        "scales", "state", "weights",
    )  # fmt: skip

    def __init__(self, rows: PulledRows, query: Floats, weights: Doubles, keys: Doubles) -> None:
        n = rows.blocks.shape[1]
        self.rows, self.query = rows, query
        self._keys = keys
        total = float(weights.sum())
        self._shares = weights / (total or 1.0)
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
        # A query without any weight has no block to wait for: all is known at once.
        total, squares = np.where(counts > 0, self._sums[counts], 1.0), self._squares[counts]
        means = first / total
        within = noise / total**2
        # The same variance from the terms themselves; few of them would tell little.
        spread = np.maximum(third - 2 * means * second + means**2 * squares, 0.0) / total**2
        between = spread * counts / np.maximum(counts - 1, 1)
        variances = np.where(counts >= FEWEST_BETWEEN, np.maximum(within, between), within)
        done = counts >= self.blocks
        return np.where(done, sums, means), np.where(done, 0.0, variances)


def permute(rows: Rows, seed: int) -> PulledRows:
    """Make the copy of the rows that pulls read."""
    n, d = rows.n, rows.d
    order = np.random.default_rng(seed).permutation(d)
    count = -(-d // LANES)
    blocks = np.zeros((count, n, LANES), np.float32)
    squares = np.zeros(d)
    for begin, block in rows.blocks():
        placed = np.zeros((len(block), count * LANES), np.float32)
        placed[:, :d] = block[:, order]
        blocks[:, begin : begin + len(block)] = placed.reshape(len(block), count, LANES).transpose(1, 0, 2)
        squares += np.einsum("nd,nd->d", block, block, dtype=np.float64)
    roots = np.zeros(count * LANES, np.float32)
    roots[:d] = np.sqrt(squares[order] / n)
    # The narrowest type that numbers the columns: the order is read for every query.
    narrow = order.astype(np.int32 if d < 2**31 else np.int64)
    return PulledRows(blocks, narrow, roots)
