"""Measure each cluster: size, mean, radius, norms and dispersion."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blas import blas_threads
from softindex.blocks import blocks, rows_per_block
from softindex.errors import InputError, show
from softindex.outward import round_down, round_up
from softindex.records import Branches, Dispersion, Doubles, Floats, Integers, Moments, Report, Tree

__all__ = ["choose_dispersion", "measure", "measure_tree"]

AUTO_RANK = 8
EXACT_SIZE = 256
"""Eigenvalue problems up to this size are solved exactly; larger ones by subspace iteration."""
BLOCK_VALUES = 1 << 23
"""Values of a cluster in float64 at a time: 64 MB, so that memory does not grow with the size of a cluster."""

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
    clusters = np.flatnonzero(sizes > 1)

    def measure_one(cluster: int) -> None:
        members = _Members(vectors, int(spans.begins[cluster]), int(spans.ends[cluster]), log_bias)
        _measure_cluster(results, cluster, members, dispersion)

    # One BLAS thread each: a cluster's products are too small to split, and BLAS threads spin while they wait for each
    # other, which takes most of the time on a busy machine.
    with blas_threads(1), ThreadPoolExecutor(max_workers=threads) as pool:
        for done, _ in enumerate(pool.map(measure_one, clusters.tolist()), 1):
            if report is not None and (done % 64 == 0 or done == len(clusters)):
                report(stage, done, len(clusters))
    return _as_moments(results, dispersion)


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

    vectors: NDArray[Any]
    begin: int
    end: int
    log_bias: Floats | None

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


def _measure_cluster(results: _Results, cluster: int, members: _Members, dispersion: Form) -> None:
    weights, log_size = members.weights()
    mean = np.zeros(members.vectors.shape[1])
    for part, items in members.blocks():
        mean += weights[part] @ items
    stored = mean.astype(np.float32)
    results.means[cluster], results.log_sizes[cluster] = stored, log_size
    if members.log_bias is not None and results.bias_max is not None:
        results.bias_max[cluster] = members.log_bias[members.begin : members.end].max()
    squared_radius, squared_norms, cosine, reach, centred = 0.0, [np.inf, 0.0], 1.0, 1.0, []
    length = float(np.linalg.norm(stored.astype(np.float64)))
    for part, items in members.blocks():
        norms = np.einsum("nd,nd->n", items, items)
        squared_norms = [min(squared_norms[0], norms.min()), max(squared_norms[1], norms.max())]
        cosine = min(cosine, _least_cosine(items, norms, stored.astype(np.float64), length))
        if length > 0.0:
            # Items far from a mean close to zero would overflow float32; no estimate needs more than 1e30.
            reach = min(max(reach, float((items @ stored.astype(np.float64)).max()) / length**2), 1e30)
        away = items - stored.astype(np.float64)
        squared_radius = max(squared_radius, np.einsum("nd,nd->n", away, away).max())
        if dispersion != "none":
            items -= mean
            items *= np.sqrt(weights[part])[:, None]
            centred.append(items if len(items) == len(weights) else items.T @ items)
    results.radii[cluster] = round_up(squared_radius**0.5)
    results.reach[cluster] = reach
    # Cosines are at most one, so 1e-12 is more than the rounding error of float64.
    results.min_cosine[cluster] = np.nextafter(np.float32(max(cosine - 1e-12, -1.0)), np.float32(-2.0))
    results.norm_min[cluster], results.norm_max[cluster] = (
        round_down(squared_norms[0] ** 0.5),
        round_up(squared_norms[1] ** 0.5),
    )
    if dispersion == "none":
        return
    single = len(centred) == 1
    _keep_dispersion(results, cluster, centred[0] if single else sum(centred[1:], centred[0]), single, dispersion)


def _least_cosine(items: Doubles, squared_norms: Doubles, mean: Doubles, length: float) -> float:
    """The smallest cosine between an item (n, d) and the mean (d,); items of length zero have no direction."""
    nonzero = squared_norms > 0.0
    if length == 0.0 or not nonzero.any():
        return -1.0 if length == 0.0 else 1.0
    return float(((items[nonzero] @ mean) / (np.sqrt(squared_norms[nonzero]) * length)).min())


def _keep_dispersion(results: _Results, cluster: int, data: Doubles, are_items: bool, dispersion: Form) -> None:
    """Store the dispersion of one cluster.

    `data` is the covariance (d, d) or, with `are_items`, the centred, weighted items (n, d) whose Gram matrix it is.
    """
    if dispersion == "full":
        _keep_full(results, cluster, data.T @ data if are_items else data)
    elif are_items and len(data) < data.shape[1]:
        _keep_few_items(results, cluster, data, int(dispersion))
    else:
        _keep_many_items(results, cluster, data.T @ data if are_items else data, int(dispersion))


def _keep_full(results: _Results, cluster: int, covariance: Doubles) -> None:
    assert results.forms is not None
    upper = np.triu_indices(len(covariance))
    packed = covariance[upper] * np.where(upper[0] == upper[1], 1.0, 2.0)
    integers, scale = _quantise(packed, np.iinfo(np.int16).max)
    results.forms[cluster], results.scales[cluster, 0] = integers, scale
    # Each packed number has a rounding error, and the sum of |q_i q_j|, i <= j, is at most d |q|^2.
    lost = float(np.abs(packed - integers * float(scale)).max(initial=0.0))
    results.excess[cluster] = round_up(lost * len(covariance) + 1e-12 * np.trace(covariance))


def _quantise(values: Doubles, largest: int) -> tuple[Doubles, np.float32]:
    """Integers from -largest to largest, and the scale that turns them back into values."""
    scale = np.float32(np.abs(values).max(initial=0.0) / largest)
    if scale == 0.0:
        return np.zeros_like(values), np.float32(0.0)
    return np.clip(np.rint(values / float(scale)), -largest, largest), scale


def _keep_forms(
    results: _Results, cluster: int, values: Doubles, directions: Doubles, trace: float
) -> tuple[Doubles, float]:
    """Store the leading eigenvalues (r,) and directions (r, d) as integers; returns the stored forms and the spread."""
    assert results.forms is not None
    d, rank = results.means.shape[1], len(values)
    spread = np.float32(max(0.0, (trace - values.sum()) / (d - rank)) if d > rank else 0.0)
    results.spread[cluster] = spread
    kept = np.zeros((rank, d))
    for row, (value, direction) in enumerate(zip(values, directions, strict=True)):
        integers, scale = _quantise(np.sqrt(max(value - float(spread), 0.0)) * direction, np.iinfo(np.int8).max)
        results.forms[cluster, row], results.scales[cluster, row] = integers, scale
        kept[row] = integers * float(scale)
    return kept, float(spread)


def _keep_many_items(results: _Results, cluster: int, covariance: Doubles, rank: int) -> None:
    trace = float(np.trace(covariance))
    kept, spread = _keep_forms(results, cluster, *_leading(covariance, rank), trace)
    missed = _largest_eigenvalue(covariance - kept.T @ kept)
    results.excess[cluster] = round_up(max(missed - spread, 0.0) + 1e-9 * trace)


def _keep_few_items(results: _Results, cluster: int, items: Doubles, rank: int) -> None:
    """The same for fewer items Y (n, d) than dimensions, by the smaller Gram matrix Y Y' in place of S = Y'Y."""
    gram = items @ items.T
    trace = float(np.trace(gram))
    values, basis = _leading(gram, rank)
    # A direction with almost no variance cannot be scaled to length one, and does not matter.
    kept_rows = values > 1e-9 * values[0]
    values = values[kept_rows]
    kept, spread = _keep_forms(results, cluster, values, (basis[kept_rows] @ items) / np.sqrt(values)[:, None], trace)
    # S - F'F = Z' J Z, where Z stacks the items on the forms and J = diag(1, -1).  With Z Z' = U V U', its nonzero
    # eigenvalues are those of the small symmetric matrix V^(1/2) U' J U V^(1/2).
    both = np.concatenate([items, kept])
    weights, axes = np.linalg.eigh(both @ both.T)
    half = axes * np.sqrt(np.maximum(weights, 0.0))
    signs = np.concatenate([np.ones(len(items)), -np.ones(len(kept))])
    missed = _largest_eigenvalue(half.T @ (half * signs[:, None]))
    # Where the forms almost equal the items, this matrix is almost nilpotent, and a rounding error moves its
    # eigenvalues by the square root of that error: allow for 1e-6.
    results.excess[cluster] = round_up(max(missed - spread, 0.0) + 1e-6 * trace)


def _leading(matrix: Doubles, rank: int) -> tuple[Doubles, Doubles]:
    """Leading eigenvalues (r,), not negative, and eigenvectors (r, m) of a symmetric matrix (m, m).

    For a large matrix by block iteration: the vectors are then close to the eigenvectors, enough for an estimate.
    """
    if len(matrix) <= EXACT_SIZE:
        values, vectors = np.linalg.eigh(matrix)
    else:
        rng = np.random.default_rng(0)
        basis = rng.standard_normal((len(matrix), min(len(matrix), rank + 8)))
        for _ in range(6):
            basis = np.linalg.qr(matrix @ basis)[0]
        values, rotation = np.linalg.eigh(basis.T @ (matrix @ basis))
        vectors = basis @ rotation
    return np.maximum(values[::-1][:rank], 0.0), vectors[:, ::-1][:, :rank].T


def _largest_eigenvalue(matrix: Doubles) -> float:
    """The largest eigenvalue of a symmetric matrix; for a large matrix, where that is expensive, an upper bound.

    The bound is (trace M^8)^(1/8), from two products; a power iteration would only give a lower bound.
    """
    if len(matrix) <= EXACT_SIZE:
        return float(np.linalg.eigvalsh(matrix)[-1])
    # Scaled to entries of at most one: the eighth power of very small or large numbers leaves the range of float64.
    scale = float(np.abs(matrix).max())
    if scale == 0.0:
        return 0.0
    return scale * float(np.linalg.norm(np.linalg.matrix_power(matrix / scale, 4)) ** 0.25) * (1 + 1e-9)
