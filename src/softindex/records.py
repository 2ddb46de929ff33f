"""The frozen records that stages hand to each other and to the caller.

What a call returns is a named tuple: a frozen dataclass takes microseconds to make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Ids = NDArray[np.int64] | NDArray[np.str_]
Json = Mapping[str, Any]
Report = Callable[[str, int, int], None]
"""report(stage, done, total): how far a stage of the work is."""


@dataclass(frozen=True, slots=True)
class Source:
    """Vectors as they came in.

    vectors (n, d) float32 or float16, possibly a memmap; ids (n,) int64 or str, or None where the
    source names no ids (row numbers then serve); queries (m, d) float32 or float16, or None where none were
    asked for or none came with the vectors.
    """

    vectors: NDArray[Any]
    ids: Ids | None = None
    queries: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """Which cell each item belongs to.

    assignment (n,) int32, values in [0, clusters); a cell may be empty.
    """

    assignment: NDArray[np.int32]
    clusters: int


@dataclass(frozen=True, slots=True)
class Branches:
    """A binary tree whose leaves are the k cells.

    The k - 1 nodes that have children are numbered depth first, the root being 0, and the cells likewise; so the items
    below a node are contiguous in cell order.
    """

    children: Integers
    """(k - 1, 2) the left and right child of each node: the number of a node, or -1 - cell."""
    begins: Integers
    """(2k - 2,) where the items of each child begin in cell order; the children of node i are entries 2i and 2i + 1."""
    ends: Integers
    """(2k - 2,) where they end."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What is kept of a binary tree over the cells: the moments of every node but the root.

    The children of node i are entries 2i and 2i + 1 of all arrays but the first.  Moments are weighted like those of
    the cells.
    """

    children: Integers
    """(k - 1, 2) as in `Branches`."""
    means: Floats
    """(2k - 2, d)"""
    log_sizes: Doubles
    """(2k - 2,)"""
    dispersion: Dispersion
    """Of the same kind and rank as that of the cells; no excess is kept."""


@dataclass(frozen=True, slots=True)
class Moments:
    """What is kept of each cell.  All arrays have k = clusters entries in their first axis.

    With per-item log biases every moment is weighted by exp(bias): an item of bias log 2 counts as two.
    """

    means: Floats
    """(k, d) weighted mean of the members; zero where the cell is empty."""
    log_sizes: Doubles
    """(k,) log of the summed weights (log of the member count without biases); -inf where empty."""
    radii: Floats
    """(k,) no member is farther from the stored mean than this (rounded up)."""
    norm_min: Floats
    """(k,) no member is shorter (rounded down)."""
    norm_max: Floats
    """(k,) no member is longer (rounded up)."""
    min_cosine: Floats | None
    """(k,) of the angle between the stored mean and a member, rounded down; None in indexes that did not keep it."""
    reach: Floats | None
    """(k,) how far the members reach along the stored mean, in units of its length: the largest x.mean / |mean|^2, 1
    where the mean is zero; None in indexes that did not keep it."""
    bias_max: Floats | None
    """(k,) the largest log bias of a member; None without biases."""
    dispersion: Dispersion


@dataclass(frozen=True, slots=True)
class Dispersion:
    """The covariance of each cell, in one of three forms.

    none: nothing is kept.
    full: `forms` (k, d(d+1)/2) int16 times `scales` (k, 1): the upper triangle row by row with off-diagonal entries
        doubled, so that q' S q is its dot product with the packed products q_i q_j.
    rank r: `forms` (k, r, d) int8 times `scales` (k, r), and `spread` (k,): q' S q is estimated by
        sum_j (f_j . q)^2 + spread |q|^2 (the rest of the trace spread evenly).
    In both, estimate + `excess` |q|^2 is an upper bound of the true form for every q, rounding of what is stored
    included.  (The kernels also round q, to 16 bits of its largest coordinate, when they evaluate forms of rank r.)
    """

    kind: str
    rank: int = 0
    forms: NDArray[Any] | None = None
    scales: Floats | None = None
    spread: Floats | None = None
    excess: Floats | None = None


@dataclass(frozen=True, slots=True)
class Codes:
    """The items in eight bits a number: mean of the cell + scale * code, in cell order."""

    values: NDArray[np.int8]
    """(n, d) residuals about the stored mean of the cell, within -127 .. 127."""
    scales: Floats
    """(n,) what an integer of the item's code stands for."""
    errors: Floats
    """(k,) no member is farther from what its code stands for than this (rounded up)."""
    lengths: Floats
    """(k,) no member's scale * code is longer than this (rounded up)."""


@dataclass(frozen=True, slots=True)
class Outliers:
    """The items farthest from the mean of their cell, for probes to look at."""

    positions: Integers
    """(m,) where they are among the items in cell order, increasing."""
    vectors: Floats
    """(m, d) the same items side by side, so that one scan reads them."""
    farthest: Floats
    """(1,) no other item is farther from the stored mean of its cell than this (rounded up)."""


class Draws(NamedTuple):
    """What `sample` returns; one row per query, one column per draw (1-D query: no row axis)."""

    ids: Ids
    """(b, n) the drawn ids."""
    log_prob: Doubles
    """(b, n) natural log of the probability with which this draw returns this id."""
    error: Doubles | float
    """(b,) estimated total variation to the exact softmax of what may be drawn: 0 for exact, NaN where the law states
    none, and for top-k the mass that it leaves out."""
    items_scored: Integers | int
    """(b,) items whose score was computed."""
    method: str
    """The law drawn from."""
    seed: int
    """The seed that gives these draws again."""
    low: Doubles | None = None
    """(b, n) for method "certified": log_prob is proven to be no less than this."""
    high: Doubles | None = None
    """(b, n) for method "certified": log_prob is proven to be no more than this."""


class TopK(NamedTuple):
    """What `top_k` returns, best first."""

    ids: Ids
    """(b, k) the ids of the best items."""
    scores: Floats
    """(b, k) float32, their scores."""
    items_scored: Integers | int
    """(b,) items whose score was computed."""


class Estimate(NamedTuple):
    """A value and its bounds, where they are proven or hold with the confidence that was asked for.

    Each is (b,) float64 (a 1-D query: a float).
    """

    value: Doubles | float
    """The estimate."""
    low: Doubles | float | None = None
    """No less than this; None where there are no bounds."""
    high: Doubles | float | None = None
    """No more than this; None where there are no bounds."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a directory on disk holds: JSON parameters and named arrays."""

    kind: str
    parameters: Json
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
