"""Snapshot: the items, ids and scorer of an index at one moment; a change makes a new one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softindex.arguments import check_ids
from softindex.errors import CorruptIndexError, InputError, show
from softindex.ids import IdMap, RowIds, id_map
from softindex.mol.clusters import ItemClusters
from softindex.mol.items import EncodedItems
from softindex.mol.scorer import PositionLists, Scorer
from softindex.mol.spec import SimilaritySpec
from softindex.records import Floats, Ids, Integers
from softindex.restrictions import Numbered, exclusions, left_out

__all__ = ["Snapshot"]

NAMED = -1
"""`next_row` of an index whose items have ids that the caller chose."""


class Snapshot(NamedTuple):
    """State of an index.  It never changes, so a search sees either all of an update or none of it."""

    spec: SimilaritySpec
    items: EncodedItems
    ids: IdMap
    next_row: int
    """Id of the next item where ids are row numbers; -1 where the caller chose the ids."""
    clusters: ItemClusters | None
    scorer: Scorer

    @classmethod
    def of(
        cls, spec: SimilaritySpec, items: EncodedItems, ids: IdMap, next_row: int, clusters: ItemClusters | None
    ) -> Snapshot:
        """Snapshot of these items."""
        return cls(spec, items, ids, next_row, clusters, Scorer(spec, items, clusters))

    @classmethod
    def start(cls, spec: SimilaritySpec, items: EncodedItems, ids: Ids | None, clusters: int) -> Snapshot:
        """Snapshot of the first items, with the caller's ids or with row numbers; clusters: how many, 0 for none."""
        n = len(items.components)
        fitted = ItemClusters.fit(items.components, items.gates, clusters) if clusters else None
        return cls.of(spec, items, *((_rows(n), n) if ids is None else (_named(ids), NAMED)), fitted)

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self.items.components)

    def all_ids(self) -> Ids:
        """(n,) ids in storage order."""
        return self.ids.at(np.arange(self.n))

    def add(self, components: Floats, gates: Floats | None, ids: Any) -> Snapshot:
        """Snapshot with more items after these."""
        m = len(components)
        id_table = self._ids_with(check_ids(ids, m), m)
        next_row = self.next_row + m if self.next_row >= 0 else NAMED
        clusters = None if self.clusters is None else self.clusters.join(components, gates)
        return self._changed(self.items.join(components, gates), id_table, next_row, clusters)

    def remove(self, ids: Any) -> Snapshot:
        """Snapshot without the items with these ids."""
        if isinstance(ids, (set, frozenset)):
            ids = list(ids)
        positions = self.ids.find(ids if isinstance(ids, (list, tuple, np.ndarray)) else [ids])
        kept: Integers = np.setdiff1d(np.arange(self.n), self._check_positions(positions))
        if len(kept) == 0:
            raise InputError("this would remove every item; keep at least one.")
        clusters = None if self.clusters is None else self.clusters.take(kept)
        return self._changed(self.items.take(kept), _named(self.ids.at(kept)), self.next_row, clusters)

    def find(self, ids: Any, b: int, *, name: str, unknown: str = "error") -> PositionLists:
        """Positions of ids: one list for all of b queries, or one per query; name: the caller's word for the ids."""
        offsets, positions = exclusions(self.ids, ids, b, name, unknown=unknown)
        return PositionLists(offsets, self._check_positions(positions))

    def left_out(self, exclude: Any, allow: Any, b: int, *, unknown: str) -> PositionLists:
        """Positions of the items that queries may not return: one list for all of b queries, or one per query."""
        lists = PositionLists.of(left_out(Numbered(self.ids, self.n), exclude, allow, b, unknown))
        return PositionLists(lists.offsets, self._check_positions(lists.positions))

    def _changed(self, items: EncodedItems, ids: IdMap, next_row: int, clusters: ItemClusters | None) -> Snapshot:
        current = None if clusters is None else clusters.current(items.components, items.gates)
        return Snapshot.of(self.spec, items, ids, next_row, current)

    def _check_positions(self, positions: Integers) -> Integers:
        if positions.size and not (positions.min() >= 0 and positions.max() < self.n):
            raise CorruptIndexError("an id points to no item: the index is damaged; restore a copy or build it again.")
        return positions

    def _ids_with(self, ids: Ids | None, m: int) -> IdMap:
        """Id map of the present items and of m more."""
        present = self.all_ids()
        if ids is None:
            if self.next_row < 0:
                raise InputError("the items of this index have ids; pass ids for the new items.")
            if isinstance(self.ids, RowIds):
                return _rows(self.n + m)
            ids = np.arange(self.next_row, self.next_row + m)
        elif self.next_row >= 0:
            raise InputError("this index uses row numbers as ids; add items without ids.")
        if ids.dtype.kind != present.dtype.kind:
            new, old = (("integer" if table.dtype.kind == "i" else "string") for table in (ids, present))
            raise InputError(f"got {new} ids, but this index has {old} ids; pass ids of the same type.")
        taken = np.flatnonzero(np.isin(ids, present))
        if len(taken):
            raise InputError(f"id {show(ids[taken[0]].item())} is already in this index; remove it first.")
        joined = check_ids(np.concatenate([present, ids]), self.n + m)
        assert joined is not None
        return _named(joined)


def _rows(n: int) -> IdMap:
    rows = np.arange(n, dtype=np.int64)
    return id_map(None, rows, rows)


def _named(ids: Ids) -> IdMap:
    rows = np.arange(len(ids), dtype=np.int64)
    return id_map(ids, rows, rows)
