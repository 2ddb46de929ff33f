"""Which cluster the items without one go to: what came, and the items of clusters too small to stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from softindex.blas import blas_threads
from softindex.contents import Contents
from softindex.live.generation import Generation
from softindex.partition import partition
from softindex.partition.frame import fit_frame
from softindex.partition.nearest import assign
from softindex.records import Doubles, Floats, Integers

__all__ = ["Moves", "assign_homeless", "count_groupable"]

SMALLEST = 0.25
"""Times the target size; the items of a smaller cluster join others."""
FEWEST = 0.5
"""Times the target size; fewer items than this make no clusters of their own."""
GROUPS = 2.0
"""Groups of items that came, times the clusters of target size that they would fill: small regions stay apart."""
CLOSER = 0.9
"""A group gets its own cluster where its squared distances from its mean are this part of those from the old means: an
old cluster that took it in would grow wide, and its moments would say little about either."""
SAMPLED = 1 << 16
"""Items in which groups are looked for at most, where only their number is wanted."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Where items go."""

    homeless: Integers
    """(m,) positions of the items that join a cluster."""
    labels: Integers
    """(m,) the cluster of each."""
    founded: tuple[Integers, ...]
    """Positions of the items of each new cluster."""


def assign_homeless(contents: Contents, generation: Generation) -> Moves | None:
    """A cluster for every item without one; None where no cluster is large enough to stay.

    Items that came from a region of their own, if they are many, get clusters of their own.
    """
    k, extent = generation.clusters, generation.extent
    counts, target = contents.sizes()[:k], len(contents) ** 0.5
    places = contents.positions()
    came, old = places[places >= extent], places[places < extent]
    alive = np.flatnonzero(counts)
    if not len(alive):
        return None
    means, items = contents.arrays["means"], contents.vectors_at(came)
    labels, squares = nearest(items, means[alive])
    groups = _groups(items, squares, target)
    founding = np.zeros(len(came), bool)
    for group in groups:
        founding[group] = True
    sizes = counts + np.bincount(alive[labels[~founding]], minlength=k)
    # A cluster far smaller than the others is joined to them.
    staying = np.flatnonzero((counts > 0) & (sizes >= min(SMALLEST * target, float(sizes.max()))))
    if not len(staying):
        return None
    leaves = np.ones(k, bool)
    leaves[staying] = False
    homeless = np.concatenate([old[leaves[generation.cluster_of(old)]], came[~founding]])
    joined = staying[nearest(contents.vectors_at(homeless), means[staying])[0]]
    return Moves(homeless, joined, tuple(came[group] for group in groups))


def count_groupable(contents: Contents, generation: Generation, positions: Integers) -> int:
    """About how many of these items are closer to one another than to the means of the clusters.

    A few items from each of many regions make no groups, and old clusters take them in one by one.  Together, those of
    many compactions do.
    """
    sample = positions[:: -(-len(positions) // SAMPLED)] if len(positions) else positions
    if not len(sample):
        return 0
    part = len(sample) / len(positions)
    items, alive = contents.vectors_at(sample), np.flatnonzero(contents.sizes()[: generation.clusters])
    squares = nearest(items, contents.arrays["means"][alive])[1]
    groups = _groups(items, squares, part * len(contents) ** 0.5)
    return round(sum(len(group) for group in groups) / part)


def _groups(items: Floats, squares: Doubles, target: float) -> list[Integers]:
    """Numbers of the items of each new cluster.  squares (m,): the squared distance of each from the nearest old mean.

    Groups of the same kind of items as before are found as well.  But they are larger than the old clusters there, so
    their items are no closer to one another.
    """
    if len(items) < FEWEST * target:
        return []
    parts = max(1, round(GROUPS * len(items) / target))
    assignment = partition(items, parts, seed=0, threads=1).assignment
    order = np.argsort(assignment, kind="stable")
    centres = []
    for members in np.split(order, np.cumsum(np.bincount(assignment, minlength=parts))[:-1]):
        if len(members) < SMALLEST * target:
            continue
        centre = items[members].mean(axis=0, dtype=np.float64).astype(np.float32)
        away = items[members] - centre
        if np.einsum("nd,nd->", away, away, dtype=np.float64) < CLOSER * squares[members].sum():
            centres.append(centre)
    if not centres:
        return []
    # Items of groups that are too small, or no group, may still be closer to one of these.
    labels, own = nearest(items, np.stack(centres))
    labels[own >= squares] = -1
    found = (np.flatnonzero(labels == group) for group in range(len(centres)))
    return [group for group in found if len(group)]


def nearest(items: Floats, centres: Floats) -> tuple[NDArray[np.int32], Doubles]:
    """(m,) the nearest centre of each item, and its squared distance."""
    labels, squares = np.zeros(len(items), np.int32), np.zeros(len(items), np.float32)
    if not len(items):
        return labels, squares.astype(np.float64)
    frame, framed = fit_frame(centres)
    with blas_threads(1), ThreadPoolExecutor(1) as pool:
        for _ in assign(items, framed, pool, frame=frame, labels=labels, squares=squares):
            pass
    return labels, squares.astype(np.float64) / float(frame.scale) ** 2
