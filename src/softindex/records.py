"""The frozen records that stages hand to each other and to the caller.

What a call returns is not frozen: a frozen dataclass takes microseconds to make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Ids = NDArray[np.int64] | NDArray[np.str_]
Json = Mapping[str, Any]
FORMAT_VERSION = 3
"""Format version of new saves.  Files of every version up to this one load."""
Report = Callable[[str, int, int], None]
"""report(stage, done, total): how far a stage of the work is."""


@dataclass(frozen=True, slots=True)
class Source:
    """Vectors as they were read.

    vectors (n, d) float32 or float16, possibly a memmap; ids (n,) int64 or str, or None where the source has none (row
    numbers then serve); queries (m, d) float32 or float16, or None.
    """

    vectors: NDArray[Any]
    ids: Ids | None = None
    queries: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """Which cluster each item belongs to.

    assignment (n,) int32, values in [0, clusters); a cluster may be empty.
    """

    assignment: NDArray[np.int32]
    clusters: int


@dataclass(frozen=True, slots=True)
class Branches:
    """A binary tree whose leaves are the k clusters.

    The k - 1 nodes that have children are numbered depth first from the root, node 0, and so are the clusters: the
    items below a node are contiguous in cluster order.
    """

    children: Integers
    """(k - 1, 2) the left and right child of each node: the number of a node, or -1 - cluster."""
    begins: Integers
    """(2k - 2,) where the items of each child begin; the children of node i are entries 2i and 2i + 1."""
    ends: Integers
    """(2k - 2,) where they end."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The moments of every node but the root of a binary tree over the clusters.

    The children of node i are entries 2i and 2i + 1 of all arrays but the first.  Moments are weighted like those of
    the clusters.
    """

    children: Integers
    """(k - 1, 2) as in `Branches`."""
    means: Floats
    """(2k - 2, d)"""
    log_sizes: Doubles
    """(2k - 2,)"""
    dispersion: Dispersion
    """Of the same kind and rank as that of the clusters; no excess is kept."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of each cluster.  All arrays have k = clusters entries in their first axis.

    With per-item log biases every moment is weighted by exp(bias): an item of bias log 2 counts as two.
    """

    means: Floats
    """(k, d) weighted mean of the members; zero where the cluster is empty."""
    log_sizes: Doubles
    """(k,) log of the summed weights (log of the member count without biases); -inf where empty."""
    radii: Floats
    """(k,) no member is farther from the stored mean than this (rounded up)."""
    norm_min: Floats
    """(k,) no member is shorter (rounded down)."""
    norm_max: Floats
    """(k,) no member is longer (rounded up)."""
    min_cosine: Floats | None
    """(k,) cosine of the largest angle between the stored mean and a member, rounded down; None in old indexes."""
    reach: Floats | None
    """(k,) the largest x.mean / |mean|^2 of a member x, 1 where the mean is zero; None in old indexes."""
    bias_max: Floats | None
    """(k,) the largest log bias of a member; None without biases."""
    dispersion: Dispersion


@dataclass(frozen=True, slots=True)
class Dispersion:
    """The covariance of each cluster, in one of three forms.

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
    """The items in eight bits per number: mean of the cluster + scale * code, in cluster order."""

    values: NDArray[np.int8]
    """(n, d) residuals about the stored mean of the cluster, within -127 .. 127."""
    scales: Floats
    """(n,) value of one integer step of the item's code."""
    errors: Floats
    """(k,) no member is farther from what its code stands for than this (rounded up)."""
    lengths: Floats
    """(k,) no member's scale * code is longer than this (rounded up)."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """The items in 8 or 16 bits per number, in place of vectors: centre of the cluster + scale * integers.

    In cluster order; rounded to float32, this is what the items are.
    """

    values: NDArray[Any]
    """(n, d) int8 within -127 .. 127 or int16 within -32767 .. 32767; the last column is 0 where there is a bias."""
    scales: Floats
    """(n,) value of one integer step of the item; 0 or at least 2^-100."""
    centres: Floats
    """(k, d) mean of the vectors that were given, about which the residuals are taken."""
    bias: Floats | None
    """(n,) the last coordinate of items with a bias, which is kept as it was given; None without."""
    lengths: Floats
    """(k,) no member's scale * integers is longer than this, with its |bias| added (rounded up)."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """The items in four bits per number: mean of the cluster + scale * (code - 7.5), in cluster order.

    Sixteen items make a block, whatever their clusters.  Codes are 0 .. 15; unused ones are 0.
    """

    values: NDArray[np.uint8]
    """(ceil(n / 16), ceil(d / 8), 64) codes of eight coordinates of sixteen items: byte 4 i + j has coordinate j of
    item i in its low half and coordinate j + 4 in its high half."""
    scales: Floats
    """(ceil(n / 16), 16) value of one step of the item's code; 0 past the last item."""
    errors: Floats
    """(k,) no member is farther from what its code stands for than this many steps (rounded up)."""
    lengths: Floats
    """(k,) no member's code - 7.5 is longer than this (rounded up)."""


@dataclass(frozen=True, slots=True)
class Items:
    """The items of an index, cluster after cluster: row i is the item `index.ids[i]`.  The arrays are not copies."""

    vectors: Any
    """(n, d) float32, the items: an array, or, for an index in fewer bits, `Decoded`, which is indexed like one and
    decodes the rows that are read."""
    offsets: Integers
    """(k + 1,) cluster c is rows offsets[c] to offsets[c + 1]."""
    log_bias: Floats | None
    """(n,) log bias of each item, or None where the index has none."""
    means: Floats
    """(k, d) mean of each cluster, weighted by exp(log_bias); zero where the cluster is empty."""
    bias: Floats | None = None
    """(n,) bias of each item, which is divided by the temperature, or None where the index has none."""

    def scores(self, rows: slice | Integers, queries: Doubles) -> Doubles:
        """q.x + bias of these rows in float64, (m, b) or (m,), for queries (d, b) or one query (d,)."""
        products: Doubles = self.vectors[rows].astype(np.float64) @ queries
        if self.bias is None:
            return products
        return products + (self.bias[rows, None] if products.ndim == 2 else self.bias[rows])


@dataclass(frozen=True, slots=True)
class Outliers:
    """The items farthest from the mean of their cluster, for probes to look at."""

    positions: Integers
    """(m,) where they are among the items in cluster order, increasing."""
    vectors: Floats
    """(m, d) the same items side by side, so that one scan reads them."""
    farthest: Floats
    """(1,) no other item is farther from the stored mean of its cluster than this (rounded up)."""


@dataclass(slots=True, eq=False)
class Estimate:
    """A value with its bounds, where there are some.

    The numbers are (b,) float64 each, or floats for a 1-D query.
    """

    value: Doubles | float
    """The estimate."""
    low: Doubles | float | None = None
    """Lower bound; None where there is none."""
    high: Doubles | float | None = None
    """Upper bound; None where there is none."""
    guarantee: str | None = None
    """What the bounds are.  "proven": they always hold.  "bound": they hold with the `confidence` asked for over the
    seed, for every query and any data.  "calibrated": they hold with that confidence over queries like those of
    `Index.calibrate`, and are about as wide as the estimate is wrong.  None where there are none."""
    error: Doubles | float | None = None
    """Expected distance between the value and the true log Z, (b,) or a float, estimated along with the stated error of
    the draws: 0 where every item was scored, NaN where nothing was scanned to judge it.  None where there are bounds.
    It is no bound."""


@dataclass(slots=True, eq=False)
class Draws:
    """Sampled items.  One row per query, one column per draw; a 1-D query gives results without the row axis.

    Fields are read by name: a record is not a tuple and cannot be unpacked.
    """

    ids: Ids
    """(b, n) ids of the sampled items."""
    log_prob: Doubles
    """(b, n) natural log of the probability that this draw returned this id; without replacement, that of its step.
    NaN where computing it would mean scoring every item (exact draws from a `MixtureIndex`)."""
    error: Doubles | float
    """(b,) estimated total variation between the distribution used and the exact softmax of the items that may be
    drawn: 0 for exact methods, NaN where a method states none, and for "top-k" the probability it leaves out."""
    items_scored: Integers | int
    """(b,) number of items whose score was computed."""
    method: str
    """Name of the distribution that was sampled."""
    seed: int
    """Pass this seed again to get the same draws."""
    log_partition: Estimate | None = None
    """log Z of the items that may be drawn, (b,), with bounds where the method has them; None where a method has no
    estimate of log Z."""
    low: Doubles | None = None
    """(b, n) proven lower bound on `log_prob` ("certified", and exact draws of `AdaptiveSoftmax`)."""
    high: Doubles | None = None
    """(b, n) proven upper bound on `log_prob`, likewise."""
    scores: Doubles | None = None
    """(b, n) learned similarities of the sampled items (`MixtureIndex` only)."""
    confidence: float | None = None
    """`error` is at least the total variation with this probability over queries like those of `Index.calibrate`; None
    where it is not calibrated for the options of this call."""
    snapshot: int | None = None
    """Number of the snapshot that was drawn from (`LiveIndex` only)."""
    request_id: str | None = None
    """Of the call that a server answered: row r of the draws is decision "request_id:r" of its log (`Client` only)."""

    @property
    def slate_log_prob(self) -> Doubles | float:
        """(b,) log-probability of all draws of a query, in their order: of the slate, where nothing was put back."""
        total: Doubles | float = self.log_prob.sum(axis=-1)
        return total


@dataclass(slots=True, eq=False)
class TopK:
    """The best items, best first.  One row per query; a 1-D query gives results without the row axis.

    Fields are read by name: a record is not a tuple and cannot be unpacked.
    """

    ids: Ids
    """(b, k) ids of the best items.  Equal scores come in storage order."""
    scores: Floats | Doubles
    """(b, k) their scores."""
    proven: NDArray[np.bool_]
    """(b, k) True where the item is proven to be among the k best of all items."""
    gap: Doubles | float
    """(b,) no item outside the result scores more than this above the last one in it; 0 means these are the k best.
    NaN where nothing is proven."""
    items_scored: Integers | int
    """(b,) number of items whose score was computed; those that a sketch in few bits ruled out do not count."""
    log_prob: Doubles | None = None
    """(b, k) natural log of their probabilities (`AdaptiveSoftmax` only)."""
    log_partition: Estimate | None = None
    """log Z, (b,), with bounds (`AdaptiveSoftmax` only)."""
    guarantee: NDArray[np.str_] | str | None = None
    """(b,) the guarantee the answer really has: "exact" where every row was scored (`AdaptiveSoftmax` only)."""
    sizes: Integers | int | None = None
    """(b,) number of items in each row, where rows differ (`AdaptiveSoftmax.nucleus`); the rest of a row is filled
    with id -1, score and log_prob -inf."""
    multiplications: Integers | int | None = None
    """(b,) multiplications spent, of any width (`AdaptiveSoftmax` only)."""
    bytes_read: Integers | int | None = None
    """(b,) bytes of the weights and their copies that were read (`AdaptiveSoftmax` only)."""
    recall: Doubles | float | None = None
    """(b,) expected share of the true k best among the results, 1 where they are proven (`Index` only); NaN where the
    index was built without what predicts it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a directory on disk holds: JSON parameters and named arrays."""

    kind: str
    parameters: Json
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    version: int = FORMAT_VERSION
    """Format version.  An index loaded from an older file is saved in that version again."""
    verified: bool = False
    """Whether every byte was compared with its checksum: then values of arrays of any size are checked too."""
    guards: Mapping[str, Any] = field(default_factory=dict)
    """`kernels.Guard` of each large array that was mapped and must be checked before it is read."""
