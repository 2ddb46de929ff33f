"""Compare what a saved index states about its items with the items: a file may lie although its checksums are right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import blocks, rows_per_block
from softindex.fields import damaged
from softindex.records import Doubles, Integers
from softindex.residuals import LARGEST, SMALLEST, Decoded, stored_vectors

__all__ = ["check_clusters", "check_items"]

BLOCK_VALUES = 1 << 18
"""Values compared at a time."""
SLACK = 1e-9
"""Relative difference allowed: bounds are rounded outward, but sums in another order round differently."""
ROUNDED = 1e-5
"""The same for values that are stored in float32, rounded to the nearest."""
LONGEST = 1.001e15
"""No build accepts a longer item."""

Arrays = Mapping[str, NDArray[Any]]


def check_clusters(arrays: Arrays) -> None:
    """Raise CorruptIndexError where the moments of clusters contradict each other: O(n + k d), no vector is read."""
    sizes = _check_offsets(arrays["offsets"], len(stored_vectors(arrays)))
    means = _lengths(arrays["means"])
    radii, shortest, longest = (arrays[name].astype(np.float64) for name in ("radii", "norm_min", "norm_max"))
    tiny = 1e-30
    reaches = arrays["reach"].astype(np.float64) if "reach" in arrays else np.ones(len(means))
    fits = {
        "norm_max": longest <= LONGEST,
        "norm_min": (shortest <= longest) & (shortest <= (means + radii) * (1 + ROUNDED) + tiny),
        "means": means <= longest * (1 + ROUNDED) + tiny,
        "radii": radii <= (means + longest) * (1 + ROUNDED) + tiny,
        "reach": (reaches >= 1) & (reaches <= 1.001e30),
    }
    for name, fit in fits.items():
        _require(fit.all(), name)
    if "min_cosine" in arrays:
        _require((np.abs(arrays["min_cosine"]) <= 1 + ROUNDED).all(), "min_cosine")
    _check_sizes(arrays, sizes)
    _check_spreads(arrays, radii)
    if "tree_children" in arrays and len(sizes) > 1:
        _check_tree(arrays, sizes)


def check_items(arrays: Arrays) -> None:
    """The same for every bound on items, which reads all of them; the form of a cluster's spread is not recomputed."""
    offsets = arrays["offsets"]
    sums = np.zeros(arrays["means"].shape)
    if "residual_values" in arrays:
        _check_residuals(arrays)
    for rows, clusters, items in _blocks(stored_vectors(arrays), offsets):
        _check_extent(arrays, clusters, items)
        if "code_values" in arrays:
            _check_codes(arrays, rows, clusters, items)
        weights = np.exp(-arrays["log_sizes"][clusters])
        if "log_bias" in arrays:
            weights = np.exp(arrays["log_bias"][rows] - arrays["log_sizes"][clusters])
        np.add.at(sums, clusters, items * weights[:, None])
    allowed = ROUNDED * arrays["norm_max"].astype(np.float64) + 1e-30
    _require((_lengths(sums - arrays["means"]) <= allowed).all(), "means")
    if "outlier_positions" in arrays:
        _check_outliers(arrays)
    if "sketch_values" in arrays:
        _check_sketch(arrays)


def _require(condition: Any, name: str) -> None:
    if not condition:
        raise damaged(f"{name} does not agree with the rest of it")


def _lengths(rows: NDArray[Any]) -> Doubles:
    """Lengths (m,) of rows (m, d), without a float64 copy of all of them."""
    return np.asarray(np.sqrt(np.einsum("md,md->m", rows, rows, dtype=np.float64)))


def _check_offsets(offsets: Integers, n: int) -> Integers:
    increasing = offsets[0] == 0 and offsets[-1] == n and (offsets[1:] >= offsets[:-1]).all()
    _require(increasing, "offsets")
    return np.asarray(np.diff(offsets))


def _blocks(vectors: NDArray[Any] | Decoded, offsets: Integers) -> Iterator[tuple[slice, Integers, Doubles]]:
    """Rows, beginning at multiples of sixteen, their clusters and their items in float64."""
    for rows in blocks(len(vectors), rows_per_block(BLOCK_VALUES, 16 * vectors.shape[1]) * 16):
        clusters = np.searchsorted(offsets, np.arange(rows.start, rows.stop), side="right") - 1
        yield rows, clusters, vectors[rows].astype(np.float64)


def _check_sizes(arrays: Arrays, sizes: Integers) -> None:
    """log_sizes and bias_max follow from the biases alone."""
    filled, expected = np.flatnonzero(sizes), np.full(len(sizes), -np.inf)
    if "log_bias" in arrays:
        bias, starts = arrays["log_bias"].astype(np.float64), arrays["offsets"][filled]
        _require((np.abs(bias) <= 1e6).all(), "log_bias")
        peaks = np.maximum.reduceat(bias, starts)
        _require(np.array_equal(arrays["bias_max"][filled], peaks), "bias_max")
        weights = np.exp(bias - np.repeat(peaks, sizes[filled]))
        expected[filled] = peaks + np.log(np.add.reduceat(weights, starts))
    else:
        expected[filled] = np.log(sizes[filled])
    _require(_close(arrays["log_sizes"], expected), "log_sizes")


def _close(found: Doubles, expected: Doubles) -> bool:
    """Whether logs agree, those of nothing (-inf) included."""
    finite = np.isfinite(expected)
    same = np.array_equal(np.isfinite(found), finite)
    return same and bool((np.abs(found[finite] - expected[finite]) <= 1e-6).all())


def _check_spreads(arrays: Arrays, radii: Doubles) -> None:
    """No direction has more variance than the squared radius."""
    if "scales" not in arrays:
        return
    scales = arrays["scales"].astype(np.float64).max(axis=1)
    largest = (radii * (1 + ROUNDED)) ** 2 + 1e-60
    if arrays["forms"].dtype == np.int8:
        _require(((127 * scales) ** 2 <= largest).all(), "scales")
        _require((arrays["spread"] <= largest).all(), "spread")
    else:
        _require((32767 * scales <= 2 * largest).all(), "scales")


def _check_tree(arrays: Arrays, sizes: Integers) -> None:
    """Sizes and means of nodes follow from those of their children, from the last node to the first."""
    children, log_sizes, means = arrays["tree_children"], arrays["tree_log_sizes"], arrays["tree_means"]
    inner = len(children)
    # Parents come first; a child that is no later node or no cluster would be followed outside.
    rows = np.arange(inner)[:, None]
    nodes, leaves = (children > rows) & (children < inner), (children < 0) & (children >= -len(sizes))
    _require((nodes | leaves).all(), "tree_children")
    longest = float(arrays["norm_max"].max())
    for node, child in ((node, child) for node in range(inner - 1, -1, -1) for child in (0, 1)):
        below, here = int(children[node, child]), 2 * node + child
        if below < 0:
            size, mean = arrays["log_sizes"][-1 - below], arrays["means"][-1 - below].astype(np.float64)
        else:
            pair = slice(2 * below, 2 * below + 2)
            size = np.logaddexp(*log_sizes[pair])
            shares = np.exp(log_sizes[pair] - size) if np.isfinite(size) else np.zeros(2)
            mean = shares @ means[pair].astype(np.float64)
        _require(_close(log_sizes[here : here + 1], np.array([size])), "tree_log_sizes")
        _require(np.abs(mean - means[here]).max() <= ROUNDED * longest + 1e-30, "tree_means")


def _check_extent(arrays: Arrays, clusters: Integers, items: Doubles) -> None:
    means = arrays["means"][clusters].astype(np.float64)
    lengths, distances = _lengths(items), _lengths(items - means)
    bounds = {name: arrays[name].astype(np.float64)[clusters] for name in ("radii", "norm_min", "norm_max")}
    _require((lengths <= LONGEST).all(), "vectors")
    _require((distances <= bounds["radii"] * (1 + SLACK) + 1e-44).all(), "radii")
    _require((lengths >= bounds["norm_min"] * (1 - SLACK) - 1e-44).all(), "norm_min")
    _require((lengths <= bounds["norm_max"] * (1 + SLACK) + 1e-44).all(), "norm_max")
    if "min_cosine" not in arrays:
        return
    products, mean_lengths = np.einsum("md,md->m", items, means), _lengths(means)
    cosines = arrays["min_cosine"][clusters].astype(np.float64)
    _require((products >= (cosines - SLACK) * lengths * mean_lengths - 1e-30).all(), "min_cosine")
    reach = arrays["reach"][clusters].astype(np.float64)
    _require(((products <= reach * mean_lengths**2 * (1 + ROUNDED) + 1e-30) | (reach >= 1e30)).all(), "reach")


def _check_residuals(arrays: Arrays) -> None:
    values, scales = arrays["residual_values"], arrays["residual_scales"].astype(np.float64)
    _require(((scales == 0) | (scales >= SMALLEST)).all(), "residual_scales")
    for rows in blocks(len(values), rows_per_block(BLOCK_VALUES, values.shape[1])):
        clusters = np.searchsorted(arrays["offsets"], np.arange(rows.start, rows.stop), side="right") - 1
        _require((values[rows] >= -LARGEST[values.dtype.name]).all(), "residual_values")
        lengths = _lengths(values[rows] * scales[rows, None])
        if "residual_bias" in arrays:
            lengths = lengths + np.abs(arrays["residual_bias"][rows])
            _require((values[rows, -1] == 0).all(), "residual_values")
        _require((lengths <= arrays["residual_lengths"][clusters] * (1 + SLACK) + 1e-44).all(), "residual_lengths")
    if "residual_bias" in arrays:
        _require((arrays["residual_centres"][:, -1] == 0).all(), "residual_centres")


def _check_codes(arrays: Arrays, rows: slice, clusters: Integers, items: Doubles) -> None:
    decoded = arrays["code_values"][rows] * arrays["code_scales"][rows, None].astype(np.float64)
    lost = _lengths(items - arrays["means"][clusters] - decoded)
    allowed = arrays["code_errors"][clusters] * (1 + SLACK) + 1e-12 * _lengths(items) + 1e-44
    _require((lost <= allowed).all(), "code_errors")
    lengths = _lengths(decoded)
    _require((lengths <= arrays["code_lengths"][clusters] * (1 + SLACK) + 1e-44).all(), "code_lengths")


def _check_outliers(arrays: Arrays) -> None:
    positions, vectors = arrays["outlier_positions"], stored_vectors(arrays)
    inside = ((positions >= 0) & (positions < len(vectors))).all() and (np.diff(positions) > 0).all()
    _require(inside, "outlier_positions")
    _require(np.array_equal(vectors[positions], arrays["outlier_vectors"]), "outlier_vectors")
    farthest = float(arrays["outlier_farthest"][0])
    for rows, clusters, items in _blocks(vectors, arrays["offsets"]):
        distances = _lengths(items - arrays["means"][clusters])
        distances[positions[(positions >= rows.start) & (positions < rows.stop)] - rows.start] = 0.0
        _require((distances <= farthest * (1 + 1e-4) + 1e-30).all(), "outlier_farthest")


def _check_sketch(arrays: Arrays) -> None:
    scales = arrays["sketch_scales"].reshape(-1).astype(np.float64)
    for rows, clusters, items in _blocks(stored_vectors(arrays), arrays["offsets"]):
        packed = arrays["sketch_values"][rows.start // 16 : -(-rows.stop // 16)]
        halves = packed.reshape(len(packed), -1, 16, 4).transpose(0, 2, 1, 3)
        codes = np.stack([halves & 15, halves >> 4], axis=3).reshape(len(packed) * 16, -1)
        coded = codes[: len(items), : items.shape[1]] - 7.5
        size = scales[rows, None]
        steps = (items - arrays["means"][clusters]) / np.where(size > 0, size, 1.0)
        lost = np.where(size[:, 0] > 0, _lengths(steps - coded), _lengths(steps))
        _require((lost <= arrays["sketch_errors"][clusters] * (1 + SLACK) + 1e-30).all(), "sketch_errors")
        _require((_lengths(coded) <= arrays["sketch_lengths"][clusters] * (1 + SLACK)).all(), "sketch_lengths")
