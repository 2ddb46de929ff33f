"""Hands batches of queries to the compiled mixture, with the bounds on what its numbers are off by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blas import blas_threads
from softindex.errors import CorruptIndexError, InputError
from softindex.kernels import NativeMixture, preferred_target
from softindex.mol.form import Form
from softindex.mol.queries import QuerySide
from softindex.mol.rounding import DOUBLE, SINGLE, Errors, Sizes, bound_errors, hidden_sizes, pair_products
from softindex.records import Doubles, Floats, Integers

__all__ = ["Batch", "Engine", "Lists"]


@dataclass(frozen=True, slots=True)
class Lists:
    """Some positions for each of b queries: those of query q are positions[offsets[q] : offsets[q + 1]]."""

    offsets: Integers
    positions: Integers

    @classmethod
    def of(cls, parts: list[Integers]) -> Lists:
        """One part for each query."""
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        joined = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return cls(offsets, np.ascontiguousarray(joined, np.int64))

    @property
    def counts(self) -> Integers:
        """(b,) how many each query has."""
        return np.diff(self.offsets)

    def take(self, rows: Integers) -> Lists:
        """The lists of some queries."""
        if len(rows) == len(self.offsets) - 1:
            return self
        parts = self.split(self.positions)
        return Lists.of([parts[row] for row in rows.tolist()])

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """What belongs to each query of values (total,)."""
        return np.split(values, self.offsets[1:-1])


@dataclass(frozen=True, slots=True)
class Batch:
    """Queries as the kernels take them, what they leave out, and what their scores are off by."""

    side: QuerySide
    excluded: Lists
    """One row of positions for all queries, or one for each."""
    left: Integers
    """(b,) items that are not excluded."""
    sizes: Sizes
    single: Errors
    """Of scores in float32."""

    def __len__(self) -> int:
        return len(self.side.components)

    def take(self, rows: Integers) -> Batch:
        """The queries of some rows, in increasing order."""
        if len(rows) == len(self):
            return self
        side, shared = self.side, len(self.excluded.offsets) == 2
        gates = None if side.gates is None else np.ascontiguousarray(side.gates[rows])
        parts = [] if shared else self.excluded.split(self.excluded.positions)
        return Batch(
            QuerySide(np.ascontiguousarray(side.components[rows]), gates, side.single),
            self.excluded if shared else Lists.of([parts[row] for row in rows.tolist()]),
            self.left[rows],
            self.sizes.take(rows),
            Errors(*(values[rows] for values in self.single)),
        )


GROUP_VALUES = 1 << 25
"""Largest logits held at once: 128 MB."""


class Engine:
    """Scores of the items of a catalogue; the items are read where they are."""

    __slots__ = ("_averages", "_components", "_gate_sizes", "_gates", "_native", "_products", "form", "lengths")

    def __init__(
        self, form: Form, components: Floats, gates: Floats | None, averages: Floats, sizes: tuple[Doubles, Doubles]
    ) -> None:
        gate = form.gate
        self._native = NativeMixture(
            components,
            gates,
            averages,
            form.query_components,
            None if gate is None else gate.first,
            None if gate is None else gate.first_bias,
            None if gate is None else gate.second,
            None if gate is None else gate.second_bias,
            preferred_target(),
        )
        self.form, self._components, self._gates, self._averages = form, components, gates, averages
        self.lengths, self._gate_sizes = sizes
        self._products = pair_products(form)

    @property
    def n(self) -> int:
        """Items."""
        return len(self._components)

    def groups(self, batch: Batch, most: int | None = None) -> Iterator[tuple[Integers, Batch]]:
        """The queries, as many at a time as their largest logits may be held of, and at most so many: rows, queries."""
        held = max(1, GROUP_VALUES // self.n)
        step = held if most is None else min(most, held)
        for begin in range(0, len(batch), step):
            rows = np.arange(begin, min(len(batch), begin + step))
            yield rows, batch.take(rows)

    def batch(self, side: QuerySide, excluded: Lists) -> Batch:
        """Queries with what they leave out."""
        b = len(side.components)
        left = np.broadcast_to(self.n - np.diff(excluded.offsets), b)
        gated = side.gates is not None
        wide = side.components.astype(np.float64)
        sizes = Sizes(
            np.sqrt(np.einsum("bpd,bpd->bp", wide, wide)) * (1 + 1e-12),
            self.lengths,
            np.abs(side.gates.astype(np.float64)) if side.gates is not None else None,
            self._gate_sizes if gated else None,
            hidden_sizes(self.form, self._products, wide, self.lengths),
        )
        single = bound_errors(self.form, sizes, SINGLE)
        if not (single.ceiling < 1e30).all() or not np.isfinite(single.score).all():
            raise InputError("the queries are so long that scores would overflow float32; rescale them.")
        return Batch(side, excluded, left, sizes, single)

    def best(self, batch: Batch, keep: int, threads: int) -> tuple[Integers, Floats]:
        """Positions and scores (b, keep) of the best of all items, best first; -1 and -inf where there are fewer."""
        positions, scores = np.empty((len(batch), keep), np.int64), np.empty((len(batch), keep), np.float32)
        out = batch.excluded
        self._native.best(self._scaled(batch), batch.side.gates, out.offsets, out.positions, threads, positions, scores)
        return positions, scores

    def best_average(self, batch: Batch, keep: int, threads: int) -> list[Integers]:
        """The items whose mean component has the largest product with the sum of the query's, at most `keep` a query.

        In the order of their positions.
        """
        positions = np.empty((len(batch), keep), np.int64)
        summed = np.ascontiguousarray(batch.side.components.sum(axis=1))
        out = batch.excluded
        self._native.best_average(summed, out.offsets, out.positions, threads, positions)
        counts = np.minimum(batch.left, keep)
        if (positions[np.arange(len(batch)), counts - 1] < 0).any():
            raise CorruptIndexError("the means of items are not numbers: the catalogue is damaged; build it again.")
        return [row[:count] for row, count in zip(positions, counts.tolist(), strict=True)]

    def largest(self, batch: Batch, keep: int, threads: int) -> tuple[Floats, Integers | None]:
        """(b, n) the largest logit of each item, -inf where it is excluded.

        With keep > 0 also (b, P, keep) the items with the largest logits of each pair, -1 where there are fewer.
        """
        found = np.empty((len(batch), self.n), np.float32)
        listed = np.empty((len(batch), self.form.pairs, keep), np.int64) if keep else None
        out = batch.excluded
        self._native.largest(self._scaled(batch), out.offsets, out.positions, threads, found, listed)
        return found, listed

    def best_listed(self, batch: Batch, lists: Lists, keep: int, threads: int) -> tuple[Integers, Floats]:
        """The same of the listed items of each query only, whose positions must increase."""
        positions, scores = np.empty((len(batch), keep), np.int64), np.empty((len(batch), keep), np.float32)
        self._native.best_listed(
            self._scaled(batch), batch.side.gates, lists.offsets, lists.positions, threads, positions, scores
        )
        return positions, scores

    def score(self, batch: Batch, lists: Lists, threads: int) -> list[Floats]:
        """Scores of the listed items of each query, within batch.single.score."""
        scores = np.empty(len(lists.positions), np.float32)
        self._native.score_listed(
            self._scaled(batch), batch.side.gates, lists.offsets, lists.positions, threads, scores
        )
        return lists.split(scores)

    def precise_errors(self, batch: Batch) -> Doubles:
        """(b,) no score in float64 is off by more."""
        # A thread of NumPy's, once woken, would go on looking for work on a core that the kernels need.
        with blas_threads(1):
            return bound_errors(self.form, batch.sizes, DOUBLE).score

    def score_precisely(self, batch: Batch, lists: Lists, threads: int) -> list[Doubles]:
        """The same in float64, within precise_errors(batch)."""
        scores = np.empty(len(lists.positions))
        gates = batch.side.gates
        wide = batch.side.components.astype(np.float64) / self.form.temperature
        self._native.score_precisely(
            wide,
            None if gates is None else gates.astype(np.float64),
            lists.offsets,
            lists.positions,
            threads,
            scores,
        )
        return lists.split(scores)

    def same(self, position: int, others: Integers) -> NDArray[np.bool_]:
        """(m,) which of other items have the same components and gates, and so the very same scores."""
        found = (self._components[others] == self._components[position]).all(axis=(1, 2))
        if self._gates is not None:
            found &= (self._gates[others] == self._gates[position]).all(axis=1)
        return np.asarray(found)

    def sample_largest(self, batch: Batch, count: int) -> Floats:
        """(b, m) the largest logits of at most `count` items, evenly spread."""
        some = self._components[:: max(1, self.n // count)][:count]
        queries = self._scaled(batch)
        with blas_threads(1):
            dots = queries.reshape(-1, self.form.component_dim) @ some.reshape(-1, self.form.component_dim).T
        dots = dots.reshape(len(batch), self.form.query_components, len(some), self.form.item_components)
        return np.asarray(dots.max(axis=(1, 3)))

    def _scaled(self, batch: Batch) -> Floats:
        # In double: the temperature is no float32.
        return (batch.side.components / np.float64(self.form.temperature)).astype(np.float32)
