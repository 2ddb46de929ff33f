"""Decisions as they are read: rows of one law at a time, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from dataclasses import replace as changed
from typing import Any

import numpy as np

from softindex.decisions import schema
from softindex.decisions.rewards import Rewards
from softindex.errors import InputError
from softindex.records import Doubles, Floats, Ids, Integers

__all__ = ["Batch", "read_batches"]

SAME = (*schema.OPTIONS, "index", "snapshot")
"""Columns in which the rows of a batch agree."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """b decisions that were drawn by one law, with n items each."""

    rows: Integers
    """(b,) numbers of the rows in the log."""
    decision_ids: Any
    """Arrow array (b,)."""
    queries: Floats | None
    """(b, d); None where only hashes were kept."""
    ids: Ids
    """(b, n)"""
    log_prob: Doubles
    """(b, n)"""
    temperature: Doubles
    """(b,)"""
    options: dict[str, Any]
    """What was passed to `sample`, where it was: method, probes, tolerance, replace, top_p, k, candidates, unknown."""
    exclude: list[Any] | None
    """(b,) ids that a query left out, or None; None where no query did."""
    allow: list[Any] | None
    error: Doubles
    """(b,)"""
    low: Doubles | None
    """(b, n), and likewise `high`."""
    high: Doubles | None
    rewards: Doubles
    """(b, n)"""
    rewarded: Any
    """(b,) whether there was any reward."""
    seed: Any
    """(b,) uint64"""
    request_ids: list[str]
    query_numbers: Integers
    index: str | None
    snapshot: int | None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Integers) -> Batch:
        """Some of the decisions."""
        cut: dict[str, Any] = {}
        for one in fields(self):
            values = getattr(self, one.name)
            if isinstance(values, list):
                cut[one.name] = [values[row] for row in rows]
            elif isinstance(values, np.ndarray):
                cut[one.name] = values[rows]
        return changed(self, decision_ids=self.decision_ids.take(rows), **cut)

    def between(self, begin: int, end: int) -> Batch:
        """Some decisions in a row, to draw for them again; `rows` counts from this batch."""
        rows = np.arange(begin, min(end, len(self)))
        return changed(self.take(rows), rows=rows)

    @property
    def replace(self) -> bool:
        """Whether draws were put back."""
        return bool(self.options.get("replace", True))

    @property
    def restricted(self) -> bool:
        """Whether the law left out items of its own accord: the k best, or a nucleus."""
        return bool(self.options["method"] == "top-k" or self.options.get("top_p", 1.0) < 1.0)


def read_batches(path: str, most: int, first: int, rewards: Rewards) -> Iterator[Batch]:
    """The batches of one file; first: number of its first row in the log."""
    pa, parquet = schema.arrow()
    with schema.reading(path):
        file = parquet.ParquetFile(path)
        names = set(file.schema_arrow.names)
    if not set(schema.COLUMNS) <= names:
        missing = min(set(schema.COLUMNS) - names)
        raise InputError(f"{path} has no column {missing!r}; it is no log of decisions of this version.")
    parts = file.iter_batches(batch_size=most)
    while True:
        with schema.reading(path):
            part = next(parts, None)
        if part is None:
            return
        table = pa.table(part)
        for rows in _groups(table):
            chosen = table if len(rows) == len(table) else table.take(pa.array(rows))
            yield _batch(chosen.combine_chunks(), first + rows, rewards)
        first += len(table)


def _groups(table: Any) -> list[Integers]:
    """Rows that agree in their law and their number of items."""
    from pyarrow import compute

    keys = {name: table[name] for name in SAME} | {"n": compute.list_value_length(table["ids"])}
    if all(len(column.unique()) == 1 for column in keys.values()):
        return [np.arange(len(table))]
    found: dict[Any, list[int]] = {}
    for row, key in enumerate(zip(*(column.to_pylist() for column in keys.values()), strict=True)):
        found.setdefault(key, []).append(row)
    return [np.array(rows) for rows in found.values()]


def _batch(table: Any, rows: Integers, rewards: Rewards) -> Batch:
    first = table.slice(0, 1).to_pylist()[0]
    options = {name: first[name] for name in schema.OPTIONS if first[name] is not None}
    n, names = len(first["ids"]), table["decision_id"].combine_chunks()
    earned, known = rewards.of(names, n)
    return Batch(
        rows=rows,
        decision_ids=names,
        queries=_matrix(table["query"]),
        ids=_matrix(table["ids"]),
        log_prob=_matrix(table["log_prob"]),
        temperature=table["temperature"].to_numpy(),
        options=options,
        exclude=_lists(table["exclude"]),
        allow=_lists(table["allow"]),
        error=table["error"].to_numpy(),
        low=_matrix(table["low"]),
        high=_matrix(table["high"]),
        rewards=earned,
        rewarded=known,
        seed=table["seed"].to_numpy(),
        request_ids=table["request_id"].to_pylist(),
        query_numbers=table["query_number"].to_numpy(),
        index=first["index"],
        snapshot=first["snapshot"],
    )


def _matrix(column: Any) -> Any:
    """A column of lists of one length as (b, m); None where it is null."""
    if column.null_count:
        return None
    flat = column.combine_chunks().flatten()
    values = np.array(flat.to_pylist()) if str(flat.type) == "string" else flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1)


def _lists(column: Any) -> list[Any] | None:
    """One list of ids or None for each row; None where every row has none."""
    return None if column.null_count == len(column) else column.to_pylist()
