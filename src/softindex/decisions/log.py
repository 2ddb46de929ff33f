"""A log of decisions in a directory of Parquet files: decisions are added, rewards are added, nothing is changed."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from softindex.arguments import as_array, check_vectors
from softindex.decisions import schema
from softindex.decisions.batches import Batch, read_batches
from softindex.decisions.rewards import Rewards, read_rewards
from softindex.errors import InputError, show
from softindex.records import Doubles, Draws, Integers
from softindex.temperatures import Temperature, check_each_temperature

__all__ = ["Log", "nothing_logged"]

DECISIONS, REWARDS, PARQUET = "decisions-", "rewards-", ".parquet"
MOST_ROWS = 50_000
"""Rows in memory before they are written as a file."""


class Log:
    """Decisions and rewards in a directory, as `softindex serve --log-decisions` writes them.

    What was added is in memory until there are 50,000 rows, until `flush`, or until the log is read or no longer used;
    a process that is killed loses it.  (The service keeps a journal, so that its rows survive kill -9.)  Any number of
    processes may add to one directory.

    Args:
        folder: The directory; it is made if it is not there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._pa, self._parquet = schema.arrow()
        self._folder = os.fspath(folder)
        try:
            os.makedirs(self._folder, exist_ok=True)
        except OSError as error:
            raise InputError(f"decisions cannot be logged in {folder} ({error}); choose another directory.") from error
        self._unwritten = _Unwritten(self._folder)
        weakref.finalize(self, self._unwritten.write_at_the_end)

    def append(
        self,
        queries: ArrayLike,
        draws: Draws,
        *,
        temperature: Temperature,
        request_id: str | None = None,
        index: str | None = None,
        **options: Any,
    ) -> list[str]:
        """Add the draws of one call of `sample`.

        Args:
            queries: As they were passed to `sample`, (b, d) or (d,).
            draws: What it returned.
            temperature: As it was passed, like every further option that the call had: `probes`, `tolerance`,
                `replace`, `exclude` and so on.  `exclude` and `allow` must be ids.
            request_id: Name of the call; None makes one.  Rows are named by it.
            index: Any text that says which index it was, such as a version.

        Returns:
            The decision id of each query, by which rewards are joined.
        """
        unknown = options.keys() - {*schema.OPTIONS, "n", "exclude", "allow", "seed", "threads"}
        if unknown:
            raise InputError(f"{show(min(unknown))} is not an option of sample; pass the options that the call had.")
        if not isinstance(draws, Draws):
            raise InputError(f"draws are a {type(draws).__name__}; pass what sample returned.")
        for option, drawn in {"n": draws.ids.shape[-1], "method": draws.method, "seed": draws.seed}.items():
            if options.get(option) not in (None, drawn):
                raise InputError(f"{option} is {show(options[option])}, but the draws were made with {show(drawn)}.")
        single = draws.ids.ndim == 1
        b, given = 1 if single else len(draws.ids), as_array(queries, "queries")
        # Queries of learned similarities may be several components.
        vectors = np.ascontiguousarray(given.reshape(1 if single else len(given), -1), np.float32)
        if len(vectors) != b:
            raise InputError(f"there are {len(vectors)} queries but {b} rows of draws; pass the queries of that call.")
        check_vectors(vectors, name="queries")
        each = np.broadcast_to(check_each_temperature(temperature, b), b)
        name = uuid.uuid4().hex if request_id is None else request_id
        names = [schema.decision_id(name, row) for row in range(b)]
        columns = {
            "decision_id": names,
            "time": np.full(b, time.time_ns() // 1000),
            "request_id": [name] * b,
            "query_number": np.arange(b),
            "index": [index] * b,
            "snapshot": [draws.snapshot] * b,
            "query": self._lists(vectors),
            "query_hash": [hashlib.sha256(row.tobytes()).hexdigest()[:32] for row in vectors],
            "temperature": each,
            **self._drawn(draws, b),
            **{option: [options.get(option)] * b for option in schema.OPTIONS},
            **{option: _ids_of_each(options.get(option), b, option) for option in ("exclude", "allow")},
        }
        columns["method"] = [draws.method] * b
        columns["replace"] = [options.get("replace", True)] * b
        self._unwritten.add(DECISIONS, schema.make_table(columns))
        return names

    def add_rewards(self, decision_ids: Any, rewards: ArrayLike, *, position: ArrayLike | None = None) -> None:
        """Add what became of decisions, now or later; several rewards of one decision or position add up.

        Args:
            decision_ids: (m,) as `append` returned them, or as in the column `decision_id`.
            rewards: (m,) one for each; or (m, n), one for each item of a slate.
            position: (m,) which item of the slate each reward is for, from 0; None: of the decision as a whole.
        """
        names, values = np.atleast_1d(decision_ids), _as_rewards(rewards)
        places = None if position is None else np.broadcast_to(_as_places(position), values.shape)
        if values.ndim == 2 and places is None:
            places = np.tile(np.arange(values.shape[1]), len(values))
            names = names.repeat(values.shape[1]) if len(names) == len(values) else names
        values = np.atleast_1d(values).ravel()
        if names.shape != values.shape or (places is not None and places.shape != values.shape):
            raise InputError(f"there are {len(names)} decision ids for {len(values)} rewards; pass one for each.")
        if not np.isfinite(values).all():
            raise InputError("a reward is not a finite number; leave out what is not known.")
        columns = {
            "decision_id": names.tolist(),
            "time": np.full(len(values), time.time_ns() // 1000),
            "position": [None] * len(values) if places is None else places,
            "reward": values,
        }
        self._unwritten.add(REWARDS, schema.make_table(columns, schema.REWARDS))

    def flush(self) -> None:
        """Write what is in memory: on the disk when this returns."""
        self._unwritten.write()

    def batches(self, rows: int = 8192, rewards: Rewards | None = None) -> Iterator[Batch]:
        """Read the decisions, file by file; at most `rows` in memory, all of one law at a time, with their rewards.

        rewards: From `rewards()`, where the caller has read them.
        """
        rewards = self.rewards() if rewards is None else rewards
        first = 0
        for path in self._files(DECISIONS):
            yield from read_batches(path, rows, first, rewards)
            first += self._count(path)

    def rewards(self) -> Rewards:
        """The sum of the rewards of every decision."""
        return read_rewards(self._files(REWARDS))

    def __len__(self) -> int:
        return sum(map(self._count, self._files(DECISIONS)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()

    def __repr__(self) -> str:
        return f"<softindex.decisions.Log: {self._folder}>"

    def _count(self, path: str) -> int:
        with schema.reading(path):
            return int(self._parquet.read_metadata(path).num_rows)

    def _files(self, kind: str) -> list[str]:
        self.flush()
        names = sorted(os.listdir(self._folder))
        return [os.path.join(self._folder, name) for name in names if name.startswith(kind) and name.endswith(PARQUET)]

    def _drawn(self, draws: Draws, b: int) -> dict[str, Any]:
        """The columns that come from the draws."""
        columns: dict[str, Any] = {"seed": np.full(b, draws.seed, np.uint64), "confidence": [draws.confidence] * b}
        for name in ("ids", "log_prob", "low", "high"):
            values = getattr(draws, name)
            columns[name] = [None] * b if values is None else self._lists(np.atleast_2d(values))
        for name in ("error", "items_scored"):
            columns[name] = np.atleast_1d(getattr(draws, name))
        estimate = draws.log_partition
        columns["log_partition"] = [None] * b if estimate is None else np.atleast_1d(estimate.value)
        return columns

    def _lists(self, rows: Any) -> Any:
        """The rows of an array as a column of lists, without a Python object for each number."""
        offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
        flat = rows.ravel()
        return self._pa.ListArray.from_arrays(
            offsets, self._pa.array(flat.tolist() if flat.dtype.kind == "U" else flat)
        )


class _Unwritten:
    """Rows that are not in a file yet."""

    def __init__(self, folder: str) -> None:
        self._folder, self._process = folder, os.getpid()
        self._tables: dict[str, list[Any]] = {DECISIONS: [], REWARDS: []}

    def add(self, kind: str, table: Any) -> None:
        self._tables[kind].append(table)
        if sum(map(len, self._tables[kind])) >= MOST_ROWS:
            self.write()

    def write(self) -> None:
        pa, _ = schema.arrow()
        for kind, tables in self._tables.items():
            if tables:
                stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
                path = os.path.join(self._folder, f"{kind}{stamp}-{uuid.uuid4().hex}{PARQUET}")
                schema.write_file(pa.concat_tables(_unified(pa, tables)), path)
                tables.clear()

    def write_at_the_end(self) -> None:
        # A forked child has a copy of rows that its parent will write.
        if os.getpid() == self._process:
            self.write()


def nothing_logged() -> InputError:
    """The error for a log without decisions."""
    return InputError("the log holds no decisions; check the directory, and that the server has closed its files.")


def _as_rewards(rewards: Any) -> Doubles:
    given = as_array(rewards, "rewards")
    if given.dtype.kind not in "biuf":
        raise InputError(f"rewards are of type {given.dtype}; pass numbers.")
    return given.astype(np.float64)


def _as_places(position: Any) -> Integers:
    places = np.atleast_1d(as_array(position, "position"))
    if places.dtype.kind not in "iu" or (places < 0).any():
        raise InputError("a position is no integer of at least 0; pass the place of the item in its slate, from 0.")
    return places.astype(np.int64)


def _ids_of_each(ids: Any, b: int, name: str) -> list[Any]:
    """What each query left out, from ids for all of them or for each."""
    if ids is None:
        return [None] * b
    listed = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    nested = any(one is None or isinstance(one, (list, tuple, set, frozenset, np.ndarray)) for one in listed)
    rows = listed if nested else [listed] * b
    if len(rows) != b:
        raise InputError(f"{name} has {len(rows)} entries for {b} queries; pass what the call of sample had.")
    found = [None if row is None else row.tolist() if isinstance(row, np.ndarray) else list(row) for row in rows]
    if any(isinstance(one, bool) for row in found if row for one in row[:1]):
        raise InputError(f"{name} is a mask, and a log keeps ids; pass index.ids[mask].")
    return found


def _unified(pa: Any, tables: list[Any]) -> list[Any]:
    """Tables of one schema: a column of nothing but null takes the type that it has elsewhere."""
    kinds = {field.name: field.type for table in tables for field in table.schema}
    for table in tables:
        for field in table.schema:
            if pa.types.is_list(field.type) and table[field.name].null_count < len(table):
                kinds[field.name] = field.type
    return [table.cast(pa.schema([(name, kinds[name]) for name in table.column_names])) for table in tables]
