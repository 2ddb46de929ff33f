"""How far the items of a cluster reach beyond its mean along a query: measured at build, and read by every probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import rows_per_block
from softindex.records import Doubles, Floats, Integers
from softindex.residuals import stored_vectors

__all__ = ["POINTS", "STEP", "measure_tails"]

STEP, POINTS = 0.5, 49
"""The curve gives the share of items beyond z = 0, 1/2, 1, ... standard deviations."""
QUERIES = 128
"""Half of them items, half means of two items."""
SAMPLED = 1 << 16
"""Items that are measured, about; the same share of every cluster."""
FEWEST = 32
"""Items measured of a cluster that has so many."""
BLOCK_VALUES = 1 << 20
"""Values of a block of items, and of their deviations for all queries."""
QUERY_VALUES = 1 << 18
"""Values of all queries together: fewer of them where they are long."""
STEEPEST = 1.5
"""Beyond the last item that was met, the curve falls by this rate per standard deviation or by its last one if that is
steeper: a sample of a million products ends before the tail does."""


Arrays = Mapping[str, NDArray[Any]]
Read = Callable[[Integers], Floats]


def measure_tails(arrays: Arrays, *, biased: bool, seed: int, read: Read | None = None) -> Doubles:
    """Return the share (49,) of all items whose score lies z standard deviations above the mean of their cluster.

    The standard deviation is that of the stored dispersion (its own where rank forms are not kept).  Queries are items,
    each without itself, and means of two items, both included: an average of items is a common query, and finds the
    items that it was made of.  The larger of both shares counts.  biased: whether the last coordinate is a bias; read:
    what reads the vectors at some positions, where they do not lie in one array.
    """
    read = stored_vectors(arrays).__getitem__ if read is None else read
    n, d = int(arrays["offsets"][-1]), arrays["means"].shape[1]
    # At least two items of each kind, and no more queries than memory for them.
    half = max(2, min(QUERIES, n, rows_per_block(QUERY_VALUES, d, least=4)) // 2)
    rng = np.random.default_rng(seed)
    pairs: Integers = rng.integers(n, size=(2 * half, 2))
    pairs[:half, 1] = pairs[:half, 0]
    wide = read(pairs.reshape(-1)).reshape(2 * half, 2, d).mean(axis=1, dtype=np.float64)
    if biased:
        wide[:, -1] = 1.0
    # Deviations do not depend on the length of a query, and squares of long ones would overflow float32.
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    queries = (wide / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    beyond = np.zeros((2, POINTS))
    for positions, weight, z in _deviations(arrays, read, queries):
        # An item is not compared with itself, and the two items of a mean count once each, however few are measured.
        for which in (0, 1):
            row = np.searchsorted(positions, pairs[:, which]).clip(0, len(positions) - 1)
            met = positions[row] == pairs[:, which]
            z[row[met], np.flatnonzero(met)] = -1.0
        beyond += _count(z, weight, half)
    own = _own_deviations(arrays, read, queries[half:], pairs[half:])
    beyond[1] += _count(own, np.ones(len(own)), 0)[1]
    return _continue(beyond.max(axis=0) / (half * n))


def _count(z: Floats, weight: Doubles, first: int) -> Doubles:
    """Numbers (2, points) of deviations z (m, b) beyond each point: of queries before `first`, and of the others."""
    bins = np.zeros((2, POINTS))
    rows, columns = np.nonzero(z >= STEP)
    place = np.minimum(z[rows, columns] / STEP, POINTS - 1).astype(np.int64)
    np.add.at(bins, ((columns >= first).astype(np.int64), place), weight[rows])
    return np.asarray(bins[:, ::-1].cumsum(axis=1)[:, ::-1])


def _deviations(arrays: Arrays, read: Read, queries: Floats) -> Iterator[tuple[Integers, Doubles, Floats]]:
    """Positions (m,), what each stands for (m,), and deviations (m, b) of the sampled items, by blocks of clusters."""
    offsets, means = arrays["offsets"], arrays["means"]
    sizes = np.diff(offsets)
    share = min(1.0, SAMPLED / int(offsets[-1]))
    taken = np.where(sizes > 1, np.maximum(np.minimum(sizes, FEWEST), np.ceil(sizes * share)), 0).astype(np.int64)
    rows = rows_per_block(BLOCK_VALUES, max(means.shape[1], len(queries)))
    block = np.cumsum(taken) // rows
    for number in np.unique(block):
        clusters = np.flatnonzero((block == number) & (taken > 0))
        if not len(clusters):
            continue
        count = taken[clusters]
        own = np.repeat(np.arange(len(clusters)), count)
        positions = offsets[clusters][own] + np.arange(len(own)) - np.repeat(np.cumsum(count) - count, count)
        away = (read(positions) - means[clusters][own]) @ queries.T
        spread = _standard_deviations(arrays, clusters, queries, away, count)
        with np.errstate(all="ignore"):
            z = away / spread[own]
        yield positions, (sizes[clusters] / count)[own], np.where(np.isfinite(z), z, -1.0)


def _own_deviations(arrays: Arrays, read: Read, queries: Floats, pairs: Integers) -> Floats:
    """Deviations (2 b, 1) of the two items (b, 2) that each query is the mean of."""
    offsets: Integers = arrays["offsets"]
    found = []
    for query, pair in zip(queries, pairs, strict=True):
        clusters = np.searchsorted(offsets, pair, side="right") - 1
        for position, cluster in zip(pair, clusters, strict=True):
            if offsets[cluster + 1] - offsets[cluster] < 2:
                continue
            first, last = offsets[cluster], min(offsets[cluster + 1], offsets[cluster] + 4 * FEWEST)
            away = (read(np.arange(first, last)) - arrays["means"][cluster]) @ query[:, None]
            one = np.array([cluster])
            spread = _standard_deviations(arrays, one, query[None], away, np.array([last - first]))[0, 0]
            score = float((read(np.array([position]))[0] - arrays["means"][cluster]) @ query)
            found.append(score / spread if spread > 0 else -1.0)
    return np.array(found, np.float32).reshape(-1, 1)


def _standard_deviations(arrays: Arrays, clusters: Integers, queries: Floats, away: Floats, count: Integers) -> Floats:
    """(c, b) of the scores in each cluster, by its rank forms, or by the deviations (m, b) of `count` items of each."""
    if "spread" not in arrays:
        squares = np.add.reduceat(np.square(away), np.cumsum(count) - count, axis=0)
        return np.asarray(np.sqrt(squares / count[:, None]), np.float32)
    forms = arrays["forms"][clusters].astype(np.float32)
    k, rank, d = forms.shape
    dots = (forms.reshape(k * rank, d) @ queries.T).reshape(k, rank, -1) * arrays["scales"][clusters][:, :, None]
    norms = np.einsum("bd,bd->b", queries, queries)
    return np.asarray(np.sqrt(np.square(dots).sum(axis=1) + arrays["spread"][clusters][:, None] * norms), np.float32)


def _continue(shares: Doubles) -> Doubles:
    """The curve (points,) continued beyond the last item that was met, which starts at 1."""
    shares[0] = 1.0
    last = int(np.flatnonzero(shares > 0)[-1])
    before = max(0, last - round(1 / STEP))
    rate = STEEPEST
    if before < last:
        rate = max(rate, float(np.log(shares[before] / shares[last])) / ((last - before) * STEP))
    further = np.arange(POINTS - 1 - last) + 1
    shares[last + 1 :] = shares[last] * np.exp(-rate * STEP * further)
    return np.asarray(np.minimum(shares, 1.0))
