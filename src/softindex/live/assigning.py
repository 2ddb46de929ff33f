"""Which cluster the items without one go to: what came, and the items of clusters too small to stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from softindex.contents import Contents
from softindex.live.generation import Generation
from softindex.partition import partition
from softindex.partition.frame import fit_frame
from softindex.partition.nearest import assign
from softindex.records import Doubles, Floats, Integers

__all__ = ["Moves", "assign_homeless"]

SMALLEST = 0.25
"""Times the target size; the items of a smaller cluster join others."""
STRANGE = 2.0
"""An item is a stranger where its squared distance from the nearest mean is this many times that of the members."""
FEWEST_STRANGERS = 0.5
"""Times the target size; fewer strangers make no clusters of their own."""


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

    Items from a region where there are no clusters, if they are many, get clusters of their own: the nearest old ones
    would only grow wide.
    """
    k, extent = generation.clusters, generation.extent
    counts, target = contents.sizes()[:k], len(contents) ** 0.5
    places = contents.positions()
    came, old = places[places >= extent], places[places < extent]
    alive = np.flatnonzero(counts)
    if not len(alive):
        return None
    means = contents.arrays["means"]
    labels, squares = nearest(contents.vectors_at(came), means[alive])
    strange = squares > STRANGE * _mean_squares(contents)[alive][labels]
    if np.count_nonzero(strange) < FEWEST_STRANGERS * target:
        strange[:] = False
    sizes = counts + np.bincount(alive[labels[~strange]], minlength=k)
    # A cluster far smaller than the others is joined to them.
    staying = np.flatnonzero((counts > 0) & (sizes >= min(SMALLEST * target, float(sizes.max()))))
    if not len(staying):
        return None
    leaves = np.ones(k, bool)
    leaves[staying] = False
    homeless = np.concatenate([old[leaves[generation.cluster_of(old)]], came[~strange]])
    joined = staying[nearest(contents.vectors_at(homeless), means[staying])[0]]
    return Moves(homeless, joined, _found(contents, came[strange], target))


def _found(contents: Contents, items: Integers, target: float) -> tuple[Integers, ...]:
    if not len(items):
        return ()
    parts = max(1, round(len(items) / target))
    labels = partition(contents.vectors_at(items), parts, seed=0, threads=1).assignment
    return tuple(items[labels == part] for part in range(parts) if (labels == part).any())


def _mean_squares(contents: Contents) -> Doubles:
    """(k,) the mean squared distance of the members of each cluster from their mean, or an upper bound."""
    arrays, kind = contents.arrays, contents.parameters["dispersion"]
    if kind == "rank":
        lengths = arrays["scales"].astype(np.float64) ** 2 * np.einsum(
            "krd,krd->kr", arrays["forms"], arrays["forms"], dtype=np.float64
        )
        squares: Doubles = lengths.sum(axis=1) + arrays["means"].shape[1] * arrays["spread"].astype(np.float64)
        return squares
    radii: Doubles = arrays["radii"].astype(np.float64) ** 2
    return radii


def nearest(items: Floats, centres: Floats) -> tuple[NDArray[np.int32], Doubles]:
    """(m,) the nearest centre of each item, and its squared distance."""
    labels, squares = np.zeros(len(items), np.int32), np.zeros(len(items), np.float32)
    if not len(items):
        return labels, squares.astype(np.float64)
    frame, framed = fit_frame(centres)
    with ThreadPoolExecutor(1, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        for _ in assign(items, framed, pool, frame=frame, labels=labels, squares=squares):
            pass
    return labels, squares.astype(np.float64) / float(frame.scale) ** 2
