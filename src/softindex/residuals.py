"""Items kept in 8 or 16 bits per number, in place of float32 vectors, and the vectors that these bits stand for.

An item is the centre of its cluster plus its scale times its integers, rounded to float32.  Everything that is
measured, drawn and proven is about these items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from softindex.blocks import blocks, rows_per_block
from softindex.outward import round_up
from softindex.quantise import largest_by_cluster, quantise, round_up_lengths, row_norms
from softindex.records import Doubles, Floats, Integers, Json, Report, Residuals
from softindex.workers import workers

__all__ = ["LARGEST", "SMALLEST", "STORAGES", "Decoded", "Storage", "keep_residuals", "stored_vectors"]

BLOCK_VALUES = 1 << 18
"""Values encoded at a time: two megabytes in float64, near enough to a core to be gone over ten times."""
Storage = Literal["float32", "int16", "int8"]
STORAGES: tuple[Storage, ...] = get_args(Storage)
"""How the items of an index are kept."""
LARGEST = {"int8": 127, "int16": 32767}
"""The largest integer of each kind of storage."""
SMALLEST = 2.0**-100
"""Scales below this are 0: products of smaller ones would leave the range of float32."""
PREFIX = "residual_"


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Vectors (n, w) float32, decoded where rows are read: index it like an array, with rows first.

    `numpy.asarray` decodes all of them at once.
    """

    values: NDArray[Any]
    scales: Floats
    centres: Floats
    offsets: Integers
    bias: Floats | None = None
    """(n,) the last column, or None where it is like all others."""
    first: int = 0
    """Position of the first row."""
    dtype = np.dtype(np.float32)
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """(n, w)"""
        return len(self.values), self.values.shape[1]

    @property
    def size(self) -> int:
        """n * w"""
        return self.values.size

    @property
    def nbytes(self) -> int:
        """Bytes that all rows would take."""
        return 4 * self.values.size

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Floats:
        """These rows as float32, a new array; further indices apply to it."""
        rows, *rest = key if isinstance(key, tuple) else (key,)
        single = isinstance(rows, (int, np.integer))
        if isinstance(rows, slice) and rows.step in (None, 1):
            found = self._between(*rows.indices(len(self))[:2])
        else:
            places = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.atleast_1d(rows)
            found = self._at(np.flatnonzero(places) if places.dtype == bool else places)
        if rest:
            found = np.ascontiguousarray(found[(slice(None), *rest)])
        return found[0] if single else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("these vectors are decoded when they are read: an array of them is always a copy.")
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def between(self, begin: int, end: int) -> Decoded:
        """These rows, still to be decoded."""
        bias = None if self.bias is None else self.bias[begin:end]
        values, scales = self.values[begin:end], self.scales[begin:end]
        return Decoded(values, scales, self.centres, self.offsets, bias, self.first + begin)

    def without_bias(self) -> Decoded:
        """All columns but the last."""
        return Decoded(self.values[:, :-1], self.scales, self.centres[:, :-1], self.offsets, None, self.first)

    def _between(self, begin: int, end: int) -> Floats:
        # Rows of one cluster, as most calls read them, share a centre.
        places = np.array([begin, max(begin, end - 1)]) + self.first
        first, last = (np.searchsorted(self.offsets, places, side="right") - 1).tolist()
        rows = slice(begin, max(begin, end))
        if first == last or begin >= end:
            centres = self.centres[first]
        else:
            edges = np.clip(self.offsets[first : last + 2], begin + self.first, end + self.first)
            centres = np.repeat(self.centres[first : last + 1], np.diff(edges), axis=0)
        bias = None if self.bias is None else self.bias[rows]
        return _decode(self.values[rows], self.scales[rows], centres, bias)

    def _at(self, places: Integers) -> Floats:
        positions = np.where(places < 0, places + len(self), places)
        clusters = np.searchsorted(self.offsets, positions + self.first, side="right") - 1
        bias = None if self.bias is None else self.bias[positions]
        return _decode(self.values[positions], self.scales[positions], self.centres[clusters], bias)


def _decode(values: NDArray[Any], scales: Floats, centres: Floats, bias: Floats | None) -> Floats:
    # Scale times integer is exact in float64, so an item rounds by less than 2^-52 before it rounds to float32.
    items = np.multiply(values, scales[:, None], dtype=np.float64)
    items += centres
    rounded: Floats = items.astype(np.float32)
    if bias is not None:
        rounded[:, -1] = bias
    return rounded


def stored_vectors(arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any] | Decoded:
    """The vectors (n, w) of an index, by its arrays."""
    if PREFIX + "values" not in arrays:
        return arrays["vectors"]
    values, scales, centres = (arrays[PREFIX + name] for name in ("values", "scales", "centres"))
    return Decoded(values, scales, centres, arrays["offsets"], arrays.get(PREFIX + "bias"))


def keep_residuals(
    items: Any,
    assignment: NDArray[np.int32],
    positions: NDArray[Any],
    offsets: Integers,
    *,
    storage: str,
    biased: bool,
    threads: int,
    report: Report | None = None,
) -> tuple[Residuals, Json]:
    """Encode items (n, w), in the order of the source: it is read twice from top to bottom, a block at a time.

    Args:
        items: Vectors or `WithBias`.
        assignment: (n,) cluster of each item.
        positions: (n,) where it goes in cluster order.
        offsets: (k + 1,) cluster c is rows offsets[c] .. offsets[c + 1] there.
        storage: "int8" or "int16".
        biased: Whether the last column is a bias, which is kept as it is.

    Returns:
        What is stored, and how far it is from what was given: the largest and the mean distance of a vector from its
        item, and `relative`, the root of the summed squares of all distances over that of the vectors.
    """
    n, w = items.shape
    centres = _centres(items, assignment, len(offsets) - 1, report)
    if biased:
        centres[:, -1] = 0.0
    bias = np.empty(n, np.float32) if biased else None
    made = Residuals(np.empty((n, w), storage), np.empty(n, np.float32), centres, bias, np.empty(0, np.float32))
    lengths = np.empty(n, np.float32)
    parts = list(blocks(n, rows_per_block(BLOCK_VALUES, w)))

    def encode(rows: slice) -> tuple[float, float, float, float]:
        place, given = positions[rows], np.asarray(items[rows], np.float64)
        own = centres[assignment[rows]]
        residuals = given - own
        added = np.zeros(len(given))
        if bias is not None:
            bias[place], residuals[:, -1], added = given[:, -1], 0.0, np.abs(given[:, -1])
        residuals[np.abs(residuals).max(axis=1) < LARGEST[storage] * SMALLEST] = 0.0
        values, scales, decoded = quantise(residuals, LARGEST[storage])
        made.values[place], made.scales[place] = values, scales
        lengths[place] = round_up_lengths(row_norms(decoded) + added)
        decoded += own
        if bias is not None:
            decoded[:, -1] = given[:, -1]
        lost = row_norms(given - decoded.astype(np.float32))
        return float(lost.max()), float(lost.sum()), float(lost @ lost), float(np.einsum("nd,nd->", given, given))

    largest, totals = 0.0, np.zeros(3)
    with workers(threads) as pool:
        for rows, (most, *sums) in zip(parts, pool.map(encode, parts), strict=True):
            largest, totals = max(largest, most), totals + sums
            if report is not None:
                report("encoding", rows.stop, n)
    relative = float((totals[1] / totals[2]) ** 0.5) if totals[2] > 0 else 0.0
    rounding = {"largest": float(round_up(largest)), "mean": float(totals[0] / n), "relative": relative}
    return Residuals(made.values, made.scales, centres, bias, largest_by_cluster(lengths, offsets)), rounding


def _centres(items: Any, assignment: NDArray[np.int32], k: int, report: Report | None) -> Floats:
    """The mean (k, w) of each cluster, from one pass over the source; zero where a cluster is empty."""
    n, w = items.shape
    sums: Doubles = np.zeros((k, w))
    for rows in blocks(n, rows_per_block(BLOCK_VALUES, w)):
        order = np.argsort(assignment[rows], kind="stable")
        clusters, starts = np.unique(assignment[rows][order], return_index=True)
        sums[clusters] += np.add.reduceat(np.asarray(items[rows], np.float64)[order], starts, axis=0)
        if report is not None:
            report("centring", rows.stop, n)
    sizes = np.bincount(assignment, minlength=k)
    sums /= np.maximum(sizes, 1)[:, None]
    return sums.astype(np.float32)
