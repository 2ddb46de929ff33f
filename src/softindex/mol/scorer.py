"""Scorer: passes batches of queries to the compiled mixture, and bounds the errors of the numbers that come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.blas import blas_threads
from softindex.errors import CorruptIndexError, InputError
from softindex.fields import flatten
from softindex.kernels import NativeMixture, preferred_target
from softindex.mol.clusters import ItemClusters
from softindex.mol.items import EncodedItems
from softindex.mol.queries import QuerySide
from softindex.mol.score_errors import DOUBLE, SINGLE, ErrorBounds, Errors
from softindex.mol.screening import LEAST, MOST, ScreenedGate
from softindex.mol.spec import SimilaritySpec
from softindex.records import Doubles, Floats, Integers

__all__ = ["PositionLists", "QueryBatch", "Scorer", "not_numbers", "pack"]

GROUP_VALUES = 1 << 25
"""Largest logits in memory at once: 128 MB."""
SCANNED = 20
"""A search by clusters looks at this many items for each candidate that it keeps."""
LEAST_CLUSTERS = 16
"""And at no fewer items than this many clusters have on average."""
LEAST_SCREENED = 1000
"""With fewer items, a screen saves less time in a search than it takes to make."""
LONGEST = 1 + 2e-3
"""A screen takes components of queries up to this length: those of length one may have been rounded to float16."""


@dataclass(frozen=True, slots=True)
class PositionLists:
    """A list of item positions for each of b queries: positions[offsets[q] : offsets[q + 1]] belong to query q."""

    offsets: Integers
    positions: Integers

    @classmethod
    def of(cls, lists: list[Integers]) -> PositionLists:
        """From one array per query."""
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(positions) for positions in lists], out=offsets[1:])
        joined = np.concatenate(lists) if lists else np.empty(0, np.int64)
        return cls(offsets, np.ascontiguousarray(joined, np.int64))

    @property
    def counts(self) -> Integers:
        """(b,) length of each list."""
        return np.diff(self.offsets)

    def take(self, rows: Integers) -> PositionLists:
        """The lists of some of the queries."""
        if len(rows) == len(self.offsets) - 1:
            return self
        lists = self.split(self.positions)
        return PositionLists.of([lists[row] for row in rows.tolist()])

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Values (total,), one per position, as one array per query."""
        return np.split(values, self.offsets[1:-1])


class Precise(NamedTuple):
    """Queries in the form that scores in float64 need."""

    packed: Doubles
    """(b, P_q / 4 rounded up, d, 4), divided by the temperature."""
    gates: Doubles | None
    """(b, P)"""
    error: Doubles
    """(b,) upper bounds on the errors of scores."""


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Encoded queries as the kernels need them, the items they exclude, and bounds on the errors of their scores.

    All of this is computed once per call, and sliced where some of the queries are handled in another way.
    """

    side: QuerySide
    excluded: PositionLists
    """One list for all queries, or one per query."""
    available: Integers
    """(b,) number of items that are not excluded."""
    errors: Errors
    """Of scores in float32."""
    scaled: Floats
    """(b, P_q, d) components divided by the temperature."""
    packed: Floats
    """(b, P_q / 4 rounded up, d, 4) the same in the layout of the kernels."""
    summed: Floats
    """(b, d) sum of the components."""
    precise: Callable[[], Precise]
    """Computed when first called: not every search needs float64."""

    def __len__(self) -> int:
        return len(self.side.components)

    def take(self, rows: Integers) -> QueryBatch:
        """Some of the queries; rows must increase."""
        if len(rows) == len(self):
            return self
        side, shared = self.side, len(self.excluded.offsets) == 2
        lists = [] if shared else self.excluded.split(self.excluded.positions)
        return QueryBatch(
            QuerySide(side.components[rows], _rows(side.gates, rows), side.single),
            self.excluded if shared else PositionLists.of([lists[row] for row in rows.tolist()]),
            self.available[rows],
            Errors(*(values[rows] for values in self.errors)),
            self.scaled[rows],
            self.packed[rows],
            self.summed[rows],
            cache(lambda: Precise(*(_rows(values, rows) for values in self.precise()))),
        )


class Scorer:
    """Scores of the items of an index.  The items are not copied."""

    __slots__ = ("_bounds", "_clusters", "_items", "_native", "_places", "_screen", "spec")

    def __init__(self, spec: SimilaritySpec, items: EncodedItems, clusters: ItemClusters | None = None) -> None:
        arrays = {"components": items.components, "averages": items.averages}
        if items.gates is not None:
            arrays["gates"] = items.gates
        if spec.gate is not None:
            arrays |= flatten(spec.gate, "gate.")
        self._screen = _useful_screen(spec, items)
        if self._screen is not None:
            arrays |= self._screen.arrays()
        if clusters is not None:
            arrays |= flatten(clusters, "clusters.")
            self._places = cache(clusters.places)
        self._native = NativeMixture(arrays, spec.query_components, preferred_target())
        self.spec, self._items, self._clusters = spec, items, clusters
        self._bounds = ErrorBounds(spec, items.lengths, items.gate_sizes)

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self._items.components)

    def groups(self, batch: QueryBatch, most: int | None = None) -> Iterator[tuple[Integers, QueryBatch]]:
        """Rows and queries in groups whose largest logits fit into memory; at most `most` queries per group."""
        fitting = max(1, GROUP_VALUES // self.n)
        step = fitting if most is None else min(most, fitting)
        for begin in range(0, len(batch), step):
            rows = np.arange(begin, min(len(batch), begin + step))
            yield rows, batch.take(rows)

    def batch(self, side: QuerySide, excluded: PositionLists) -> QueryBatch:
        """Encoded queries with their exclusions."""
        available = np.broadcast_to(self.n - excluded.counts, len(side.components))
        wide = side.components.astype(np.float64)
        sizes = self._bounds.sizes(wide, side.gates)
        errors = self._bounds.errors(sizes, SINGLE)
        if not (errors.ceiling < 1e30).all() or not np.isfinite(errors.score).all():
            raise InputError("the queries are so long that scores would overflow float32; rescale them.")
        # Divide in float64: the temperature is rarely a float32 number.
        divided = wide / self.spec.temperature
        scaled = divided.astype(np.float32)

        def precise() -> Precise:
            # A BLAS thread, once woken, keeps spinning on a core that the kernels need.
            with blas_threads(1):
                error = self._bounds.errors(sizes, DOUBLE).score
            return Precise(pack(divided), None if side.gates is None else side.gates.astype(np.float64), error)

        summed = side.components.sum(axis=1)
        return QueryBatch(side, excluded, available, errors, scaled, pack(scaled), summed, cache(precise))

    def best(self, batch: QueryBatch, keep: int, threads: int) -> tuple[Integers, Floats]:
        """Positions and scores (b, keep) of the best items, best first; -1 and -inf where there are fewer."""
        positions, scores = np.empty((len(batch), keep), np.int64), np.empty((len(batch), keep), np.float32)
        out = batch.excluded
        self._native.best(batch.packed, batch.side.gates, out.offsets, out.positions, threads, positions, scores)
        return positions, scores

    def screens(self, batch: QueryBatch) -> NDArray[np.bool_]:
        """(b,) whether `best_screened` takes the query, and is faster than `best` on this CPU."""
        largest = -1.0 if self._screen is None else self._screen.largest
        return (batch.errors.ceiling <= largest) & self._native.screens

    def best_screened(
        self, batch: QueryBatch, k: int, keep: int, width: int, threads: int
    ) -> tuple[Integers, Floats, Doubles]:
        """The same as `best` where only the k best matter, and upper bounds (b,) on the scores of all other items.

        The gate is computed in sixteen bits first, for all items; then in float32 for as few of them as possible, and
        at most `width`.
        """
        b, errors, out = len(batch), batch.errors, batch.excluded
        positions, scores = np.empty((b, keep), np.int64), np.empty((b, keep), np.float32)
        assert self._screen is not None  # screens says so
        # The weights of the pairs may be off by what rounding adds to the slack: less than where both layers are sums
        # of floats.  What is left are the errors of the logits, of their range, and of the last sums, a few units of
        # the largest possible score for each pair.
        slacks = np.nextafter((self._screen.slack + errors.weights).astype(np.float32), np.float32(np.inf))
        error = 4 * errors.logit + (4 * self.spec.pairs + 32) * SINGLE * errors.ceiling
        # Scores in float32 are far closer than their bounds say: a few units decide when to stop, and nothing else.
        margins = (error + 64 * SINGLE * errors.ceiling).astype(np.float32)
        outside, queries = np.empty(b, np.float32), (batch.packed, batch.side.gates)
        self._native.best_screened(
            *queries, out.offsets, out.positions, k, width, slacks, margins, threads, positions, scores, outside
        )
        return positions, scores, outside + error

    def best_listed(self, batch: QueryBatch, lists: PositionLists, keep: int, threads: int) -> tuple[Integers, Floats]:
        """The same among the listed items of each query.  Positions in a list must increase."""
        positions, scores = np.empty((len(batch), keep), np.int64), np.empty((len(batch), keep), np.float32)
        self._native.best_listed(
            batch.packed, batch.side.gates, lists.offsets, lists.positions, threads, positions, scores
        )
        return positions, scores

    def best_average(self, batch: QueryBatch, keep: int, threads: int) -> list[Integers]:
        """At most `keep` positions per query, increasing: the largest products of averages with the summed query."""
        positions = np.empty((len(batch), keep), np.int64)
        out = batch.excluded
        self._native.best_average(batch.summed, out.offsets, out.positions, threads, positions)
        return _without_gaps(batch, positions, partial(not_numbers, "averages of items"))

    def best_clustered(self, batch: QueryBatch, keep: int, threads: int) -> list[Integers]:
        """At most `keep` positions per query, increasing: the largest expanded scores in the most promising clusters.

        See `reference.expansions`.  The index must have clusters.
        """
        positions, out = np.empty((len(batch), keep), np.int64), batch.excluded
        if len(out.positions):
            out = PositionLists.of([np.sort(self._places()[row]) for row in out.split(out.positions)])
        scanned = max(SCANNED * keep, LEAST_CLUSTERS * self.n // len(self._clusters or [0]))
        self._native.best_clustered(
            batch.packed, batch.side.gates, out.offsets, out.positions, scanned, threads, positions
        )
        return _without_gaps(batch, positions, overflown)

    def best_candidates(self, batch: QueryBatch, keep: int, threads: int) -> list[Integers]:
        """At most `keep` positions per query, increasing: by clusters, or by averages if there are no clusters."""
        return (self.best_average if self._clusters is None else self.best_clustered)(batch, keep, threads)

    def largest(self, batch: QueryBatch, keep: int, threads: int) -> tuple[Floats, Integers | None]:
        """(b, n) largest logit of each item, -inf where it is excluded.

        With keep > 0 also (b, P, keep) positions of the largest logits of each pair, -1 where there are fewer.
        """
        logits = np.empty((len(batch), self.n), np.float32)
        positions = np.empty((len(batch), self.spec.pairs, keep), np.int64) if keep else None
        out = batch.excluded
        self._native.largest(batch.packed, out.offsets, out.positions, threads, logits, positions)
        return logits, positions

    def score(self, batch: QueryBatch, lists: PositionLists, threads: int) -> list[Floats]:
        """Scores of the listed items of each query, with errors of at most batch.errors.score."""
        scores = np.empty(len(lists.positions), np.float32)
        self._native.score_listed(batch.packed, batch.side.gates, lists.offsets, lists.positions, threads, scores)
        return lists.split(scores)

    def score_precisely(self, batch: QueryBatch, lists: PositionLists, threads: int) -> list[Doubles]:
        """The same in float64, with errors of at most batch.precise().error."""
        scores, queries = np.empty(len(lists.positions)), batch.precise()
        self._native.score_precisely(queries.packed, queries.gates, lists.offsets, lists.positions, threads, scores)
        if not np.isfinite(scores).all():
            raise not_numbers()
        return lists.split(scores)

    def copies(self, position: int, others: Integers) -> NDArray[np.bool_]:
        """(m,) which of the other items have the same components and gates, and so exactly the same scores."""
        components, gates = self._items.components, self._items.gates
        equal = (components[others] == components[position]).all(axis=(1, 2))
        if gates is not None:
            equal &= (gates[others] == gates[position]).all(axis=1)
        return np.asarray(equal)

    def sample_largest(self, batch: QueryBatch, count: int) -> Floats:
        """(b, m) largest logits of at most `count` items, evenly spaced."""
        some = self._items.components[:: max(1, self.n // count)][:count]
        with blas_threads(1):
            dots = batch.scaled.reshape(-1, self.spec.component_dim) @ some.reshape(-1, self.spec.component_dim).T
        dots = dots.reshape(len(batch), self.spec.query_components, len(some), self.spec.item_components)
        return np.asarray(dots.max(axis=(1, 3)))


def _without_gaps(batch: QueryBatch, positions: Integers, error: Callable[[], CorruptIndexError]) -> list[Integers]:
    """The positions (b, keep) as one array per query; every item that a query may return can be among them."""
    counts = np.minimum(batch.available, positions.shape[1])
    if (positions[np.arange(len(batch)), counts - 1] < 0).any():
        raise error()
    return [row[:count] for row, count in zip(positions, counts.tolist(), strict=True)]


def pack(queries: NDArray[Any]) -> NDArray[Any]:
    """Queries (b, P_q, d) in the layout of the kernels: four components at a time, padded with zeros."""
    b, count, d = queries.shape
    padded = np.zeros((b, -(-count // 4), 4, d), queries.dtype)
    padded.reshape(b, -1, d)[:, :count] = queries
    return np.ascontiguousarray(padded.swapaxes(2, 3))


def _useful_screen(spec: SimilaritySpec, items: EncodedItems) -> ScreenedGate | None:
    """The gate in sixteen bits; None where there is no gate, or bounds would not help."""
    if spec.gate is None or len(items.components) < LEAST_SCREENED:
        return None
    # The largest logit of a query whose components have length one, or nearly so.
    largest = float(items.lengths.max()) / spec.temperature * LONGEST
    if not LEAST <= largest <= MOST:
        return None
    screen = ScreenedGate.of(spec.gate, largest, spec.component_dim)
    # The logits are rarely all as large as they may be: a quarter of that length is above the usual one.
    return screen if screen.useful(largest * np.sqrt(spec.pairs) / 4) else None


def _rows(values: Any, rows: Integers) -> Any:
    return None if values is None else values[rows]


def not_numbers(what: str = "scores") -> CorruptIndexError:
    """The error for NaN in an index: none gets in when it is built."""
    return CorruptIndexError(f"{what} are not numbers: the index is damaged; restore a copy or build it again.")


def overflown() -> CorruptIndexError:
    """The error for expansions that are not numbers: the sizes of scores are bounded, those of their slopes are not."""
    return CorruptIndexError(
        "scores expanded around clusters are not numbers: they overflow float32, or the index is damaged; use another "
        "method."
    )
