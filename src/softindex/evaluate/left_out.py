"""Items of the index as queries, each of which may not be drawn for itself: the audit's own queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softindex.evaluate.truth import Truth
from softindex.index import Index
from softindex.records import Doubles, Floats, Ids, Integers

__all__ = ["LeftOut", "leave_out"]


@dataclass(frozen=True, slots=True, eq=False)
class LeftOut:
    """The item that each of b queries is, and leaves out."""

    rows: Integers
    """(b,) its position in the index."""
    ids: Ids
    """(b, 1) its id, for `exclude`."""
    clusters: Integers
    """(b,) its cluster."""
    logits: Doubles
    """(t, b) its logit for itself, at each temperature."""

    def complete(self, truth: Truth) -> Truth:
        """The softmax of all items, from that without them."""
        log_masses = truth.log_masses.copy()
        b = np.arange(len(self.rows))
        log_masses[:, b, self.clusters] = np.logaddexp(log_masses[:, b, self.clusters], self.logits)
        return Truth(log_masses, truth.variances)


def leave_out(index: Index, queries: Floats, rows: Integers, temperatures: list[float]) -> LeftOut:
    """What queries (b, d) leave out if they are the items at these positions (b,)."""
    items = index.items
    scores = np.einsum("bd,bd->b", queries, items.vectors[rows], dtype=np.float64)
    if items.bias is not None:
        scores = scores + items.bias[rows]
    logits = scores / np.array(temperatures)[:, None]
    if items.log_bias is not None:
        logits = logits + items.log_bias[rows]
    clusters = np.searchsorted(items.offsets, rows, side="right") - 1
    return LeftOut(rows, index.ids[rows][:, None], clusters, logits)
