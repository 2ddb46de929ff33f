"""Measure each cluster: size, mean, radius, norms and dispersion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blas import blas_threads
from softindex.blocks import blocks, rows_per_block
from softindex.dispersion import BLOCK_VALUES, Centred, Kept, keep_full, keep_leading, matrix_bytes
from softindex.errors import InputError, show
from softindex.outward import round_down, round_up
from softindex.records import Branches, Dispersion, Doubles, Floats, Integers, Moments, Report, Tree
from softindex.workers import workers

__all__ = ["add_up_clusters", "choose_dispersion", "measure", "measure_tree"]

AUTO_RANK = 8
WORKING_BYTES = 80 << 20
"""Working memory of all threads together, beside a quarter of the vectors' own size."""
BLOCKS = 4
"""Blocks in float64 that a thread holds at the same time."""
VECTORS = 24
"""Vectors of d numbers that it holds beside them: means and forms."""

Form = str | int


def choose_dispersion(dispersion: Any, d: int) -> Form:
    """Return the dispersion to keep: "none", "full", or a rank from 1 to d."""
    if isinstance(dispersion, str) and dispersion in ("none", "full"):
        return dispersion
    if isinstance(dispersion, str) and dispersion == "auto":
        # In few dimensions a full covariance takes no more bytes than rank eight, and is exact.
        return "full" if d * (d + 1) <= AUTO_RANK * (d + 4) + 4 else AUTO_RANK
    if isinstance(dispersion, (int, np.integer)) and not isinstance(dispersion, bool) and dispersion >= 1:
        return min(int(dispersion), d)
    shown = "a rank below 1" if isinstance(dispersion, (int, np.integer)) else show(dispersion)
    raise InputError(f'dispersion is {shown}; expected "none", "full", "auto" or a rank of at least 1.')


@dataclass(frozen=True, slots=True)
class _Results:
    """The arrays being filled, one entry per cluster."""

    means: Floats
    log_sizes: Doubles
    radii: Floats
    norm_min: Floats
    norm_max: Floats
    min_cosine: Floats
    reach: Floats
    bias_max: Floats | None
    forms: NDArray[np.int16] | NDArray[np.int8] | None
    scales: Floats
    spread: Floats
    excess: Floats


def measure(
    vectors: NDArray[Any],
    offsets: NDArray[np.int64],
    *,
    log_bias: Floats | None,
    dispersion: Form,
    threads: int,
    report: Report | None = None,
) -> Moments:
    """Measure every cluster.  vectors (n, d) float32 in cluster order; cluster c is rows offsets[c] to offsets[c + 1].

    With log_bias (n,), in the same order, every moment is weighted by exp(bias).  Sums are float64.  Radii, norms and
    the dispersion's excess are rounded outward: they bound the true members relative to the stored, rounded means.
    """
    spans = _Spans(offsets[:-1], offsets[1:])
    return _measure_spans(vectors, spans, log_bias, dispersion, threads, "measuring", report)


def measure_tree(
    vectors: NDArray[Any],
    branches: Branches,
    *,
    log_bias: Floats | None,
    dispersion: Form,
    threads: int,
    report: Report | None = None,
) -> Tree:
    """Measure every node of a tree but the root, as `measure` does clusters: the items of a node are contiguous too."""
    spans = _Spans(branches.begins, branches.ends)
    moments = _measure_spans(vectors, spans, log_bias, dispersion, threads, "measuring the tree", report)
    return Tree(branches.children, moments.means, moments.log_sizes, replace(moments.dispersion, excess=None))


def add_up_clusters(vectors: Floats, offsets: Integers, log_bias: Floats | None, bias_max: Floats | None) -> Doubles:
    """(k, w) the sum over each cluster of its items, each times exp(log_bias - bias_max), in float64."""
    sums = np.zeros((len(offsets) - 1, vectors.shape[1]))
    for cluster in range(len(sums)):
        rows = slice(int(offsets[cluster]), int(offsets[cluster + 1]))
        items = vectors[rows].astype(np.float64)
        if log_bias is None or bias_max is None:
            sums[cluster] = items.sum(axis=0)
        else:
            sums[cluster] = np.exp(log_bias[rows].astype(np.float64) - bias_max[cluster]) @ items
    return sums


@dataclass(frozen=True, slots=True)
class _Spans:
    """Ranges of rows: range c is begins[c] to ends[c]."""

    begins: Integers
    ends: Integers


def _measure_spans(
    vectors: NDArray[Any],
    spans: _Spans,
    log_bias: Floats | None,
    dispersion: Form,
    threads: int,
    stage: str,
    report: Report | None,
) -> Moments:
    sizes = spans.ends - spans.begins
    results = _empty_results(len(sizes), vectors.shape[1], log_bias is not None, dispersion)
    _measure_single_items(results, vectors, spans, log_bias)
    room, done = WORKING_BYTES + vectors.size, 0

    def measure_one(cluster: int) -> None:
        members = _Members(vectors, int(spans.begins[cluster]), int(spans.ends[cluster]), log_bias)
        _measure_cluster(results, cluster, members, dispersion, room)

    # One BLAS thread each: a cluster's products are too small to split, and BLAS threads spin while they wait for each
    # other, which takes most of the time on a busy machine.
    with blas_threads(1):
        for count, clusters in _shifts(sizes, vectors.shape[1], room, threads):
            with workers(count) as pool:
                for _ in pool.map(measure_one, clusters.tolist()):
                    done += 1
                    if report is not None and (done % 64 == 0 or done == (sizes > 1).sum()):
                        report(stage, done, int((sizes > 1).sum()))
    return _as_moments(results, dispersion)


def _shifts(sizes: Integers, d: int, room: int, threads: int) -> Iterator[tuple[int, Integers]]:
    """Which clusters to measure with how many threads: those that need much memory come last, with fewer threads."""
    clusters = np.flatnonzero(sizes > 1)
    rows: Integers = sizes[clusters]
    held = BLOCKS * 8 * np.minimum(BLOCK_VALUES, rows * d) + VECTORS * 8 * d
    needed = held + np.minimum(matrix_bytes(rows, d), room)
    small = needed <= room // threads
    yield threads, clusters[small]
    if not small.all():
        yield max(1, min(threads, room // int(needed.max()))), clusters[~small]


def _empty_results(k: int, d: int, biased: bool, dispersion: Form) -> _Results:
    forms: NDArray[np.int16] | NDArray[np.int8] | None = None
    rank = dispersion if isinstance(dispersion, int) else 1
    if dispersion == "full":
        forms = np.zeros((k, d * (d + 1) // 2), np.int16)
    elif dispersion != "none":
        forms = np.zeros((k, rank, d), np.int8)
    radii, norm_min, norm_max, spread, excess = (np.zeros(k, np.float32) for _ in range(5))
    return _Results(
        means=np.zeros((k, d), np.float32),
        log_sizes=np.full(k, -np.inf),
        radii=radii,
        norm_min=norm_min,
        norm_max=norm_max,
        min_cosine=np.full(k, np.nextafter(np.float32(1), np.float32(0))),
        reach=np.ones(k, np.float32),
        bias_max=np.zeros(k, np.float32) if biased else None,
        forms=forms,
        scales=np.zeros((k, rank), np.float32),
        spread=spread,
        excess=excess,
    )


def _as_moments(results: _Results, dispersion: Form) -> Moments:
    if dispersion == "none":
        kept = Dispersion("none")
    elif dispersion == "full":
        kept = Dispersion("full", 0, results.forms, results.scales, None, results.excess)
    else:
        rank = int(dispersion)
        kept = Dispersion("rank", rank, results.forms, results.scales, results.spread, results.excess)
    return Moments(
        results.means,
        results.log_sizes,
        results.radii,
        results.norm_min,
        results.norm_max,
        results.min_cosine,
        results.reach,
        results.bias_max,
        kept,
    )


def _measure_single_items(results: _Results, vectors: NDArray[Any], spans: _Spans, log_bias: Floats | None) -> None:
    """Measure the clusters of one item in bulk: there may be millions of them."""
    clusters = np.flatnonzero(spans.ends - spans.begins == 1)
    for rows in blocks(len(clusters), rows_per_block(BLOCK_VALUES, vectors.shape[1])):
        part = clusters[rows]
        items = vectors[spans.begins[part]]
        norms = np.sqrt(np.einsum("nd,nd->n", items, items, dtype=np.float64))
        results.means[part] = items
        results.norm_min[part], results.norm_max[part] = round_down(norms), round_up(norms)
        results.log_sizes[part] = 0.0
        if log_bias is not None and results.bias_max is not None:
            results.bias_max[part] = results.log_sizes[part] = log_bias[spans.begins[part]]


@dataclass(frozen=True, slots=True)
class _Members:
    """The items of one cluster, read in blocks."""

    vectors: Any
    """Of all items: an array, or `Decoded`."""
    begin: int
    end: int
    log_bias: Floats | None

    def rows(self) -> Any:
        """Their vectors (n, d), of which blocks can be read."""
        if isinstance(self.vectors, np.ndarray):
            return self.vectors[self.begin : self.end]
        return self.vectors.between(self.begin, self.end)

    def weights(self) -> tuple[Doubles, float]:
        """Weights (n,) that sum to one, and the log of their sum before they were normalised."""
        if self.log_bias is None:
            count = self.end - self.begin
            return np.full(count, 1.0 / count), float(np.log(count))
        bias = self.log_bias[self.begin : self.end].astype(np.float64)
        # Subtract the maximum first: exp overflows above 709.
        peak = bias.max()
        weights = np.exp(bias - peak)
        total = weights.sum()
        return weights / total, float(peak + np.log(total))

    def blocks(self) -> Iterator[tuple[slice, Doubles]]:
        """Slices of the cluster and their items in float64."""
        for part in blocks(self.end - self.begin, rows_per_block(BLOCK_VALUES, self.vectors.shape[1])):
            rows = slice(self.begin + part.start, self.begin + part.stop)
            yield part, self.vectors[rows].astype(np.float64)


def _measure_cluster(results: _Results, cluster: int, members: _Members, dispersion: Form, room: int) -> None:
    weights, log_size = members.weights()
    mean = np.zeros(members.vectors.shape[1])
    for part, items in members.blocks():
        mean += weights[part] @ items
    results.means[cluster], results.log_sizes[cluster] = mean, log_size
    if members.log_bias is not None and results.bias_max is not None:
        results.bias_max[cluster] = members.log_bias[members.begin : members.end].max()
    _measure_extent(results, cluster, members)
    if dispersion == "none":
        return
    centred = Centred(members.rows(), mean, np.sqrt(weights))
    kept = keep_full(centred, room) if dispersion == "full" else keep_leading(centred, int(dispersion), room)
    _store(results, cluster, kept)


def _measure_extent(results: _Results, cluster: int, members: _Members) -> None:
    """Radius, norms, cone and reach about the stored mean."""
    stored = results.means[cluster].astype(np.float64)
    squared_radius, squared_norms, cosine, reach = 0.0, [np.inf, 0.0], 1.0, 1.0
    length = float(np.linalg.norm(stored))
    for _, items in members.blocks():
        norms = np.einsum("nd,nd->n", items, items)
        squared_norms = [min(squared_norms[0], norms.min()), max(squared_norms[1], norms.max())]
        cosine = min(cosine, _least_cosine(items, norms, stored, length))
        if length > 0.0:
            # Items far from a mean close to zero would overflow float32; no estimate needs more than 1e30.
            reach = min(max(reach, float((items @ stored).max()) / length**2), 1e30)
        items -= stored
        squared_radius = max(squared_radius, np.einsum("nd,nd->n", items, items).max())
    results.radii[cluster] = round_up(squared_radius**0.5)
    results.reach[cluster] = reach
    # Cosines are at most one, so 1e-12 is more than the rounding error of float64.
    results.min_cosine[cluster] = np.nextafter(np.float32(max(cosine - 1e-12, -1.0)), np.float32(-2.0))
    results.norm_min[cluster], results.norm_max[cluster] = (
        round_down(squared_norms[0] ** 0.5),
        round_up(squared_norms[1] ** 0.5),
    )


def _store(results: _Results, cluster: int, kept: Kept) -> None:
    assert results.forms is not None
    results.forms[cluster], results.scales[cluster] = kept.forms, kept.scales
    results.spread[cluster], results.excess[cluster] = kept.spread, kept.excess


def _least_cosine(items: Doubles, squared_norms: Doubles, mean: Doubles, length: float) -> float:
    """The smallest cosine between an item (n, d) and the mean (d,); items of length zero have no direction."""
    nonzero = squared_norms > 0.0
    if length == 0.0 or not nonzero.any():
        return -1.0 if length == 0.0 else 1.0
    members = items if nonzero.all() else items[nonzero]
    return float(((members @ mean) / (np.sqrt(squared_norms[nonzero]) * length)).min())
