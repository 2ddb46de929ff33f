"""`LiveIndex`: a catalogue that changes, in a directory, with snapshots to draw from."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import as_array, check_choice, check_ids, check_matrix, check_per_item, check_vectors
from softindex.errors import InputError, SaveError, StorageError, UnknownIdError
from softindex.index import Index
from softindex.live.changes import Changes
from softindex.live.compactor import Compactor
from softindex.live.folding import PublishedFold, fold, freeze, is_due
from softindex.live.generation import Generation, read_generation
from softindex.live.locking import WriterLock
from softindex.live.log import Log, Manifest, Operation, pieces
from softindex.live.snapshot import snapshot_contents
from softindex.live.space import disk_bytes, remove_unused
from softindex.live.status import Status
from softindex.records import Floats, Ids, Json

__all__ = ["LiveIndex"]

_NEVER = -1
ATTEMPTS = 50
"""Readers that find a generation deleted start again with the next one."""


class LiveIndex:
    """A catalogue of items that change.  Made by `softindex.open`; use it in a `with` block, or close it.

    One process writes; any number of others read.  `snapshot()` gives an immutable `Index`, which draws never wait for
    a change or a compaction.  A change is on disk when the call returns.  All methods may be called from any thread.
    """

    def __init__(self, place: str, log: Log, lock: WriterLock | None, *, compaction: str = "background") -> None:
        self._place, self._log, self._lock = place, log, lock
        self._writing = threading.RLock()
        """Held while the database is used."""
        self._changing = threading.Lock()
        """Held for the moment in which the items in memory change."""
        self._process = os.getpid()
        self._parameters: Json
        self._changes: Changes
        self._number = 0
        self._snapshot: Index | None = None
        self._version: int | None = _NEVER
        self._load()
        self._compactor = Compactor(self._compact_once) if lock is not None else None
        self._background = compaction == "background"
        if lock is not None:
            remove_unused(place, self._changes.generation)

    # Reading

    def snapshot(self) -> Index:
        """The present items as an `Index` that never changes; the same object until something does.

        Raises:
            InputError: The catalogue holds no items.
        """
        self._check_process()
        with self._changing:
            if self._snapshot is None:
                if self._changes.count == 0:
                    raise InputError("the catalogue holds no items; upsert some before you take a snapshot.")
                self._snapshot = Index(snapshot_contents(self._changes, self._parameters, self._number))
            return self._snapshot

    def refresh(self) -> bool:
        """Follow what the writer committed; True if anything changed.  Costs microseconds where nothing did."""
        self._check_open()
        if self._lock is not None:
            return False
        with self._writing, self._log.explaining("be read"):
            if self._log.version() == self._version:
                return False
            self._load()
            return True

    def status(self) -> Status:
        """What the catalogue holds, what it takes on disk, and how compaction fares."""
        self._check_process()
        with self._changing:
            changes, generation = self._changes, self._changes.generation
            rows, removed = changes.rows, int(np.count_nonzero(changes.removed))
            number, count = self._number, changes.count
        state = None if self._compactor is None else self._compactor.state()
        return Status(
            path=self._place,
            snapshot=number,
            items=count,
            delta_rows=rows,
            removed=removed,
            clusters=0 if generation is None else generation.clusters,
            segments=0 if generation is None else len(generation.segments),
            bytes_on_disk=disk_bytes(self._place),
            writable=self._lock is not None,
            compaction=state,
        )

    def __len__(self) -> int:
        return self._changes.count

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return int(self._parameters["dim"])

    @property
    def ids(self) -> str | None:
        """Kind of its ids, "integers" or "strings"; None until the first items of an empty catalogue came."""
        return None if self._parameters["ids"] is None else str(self._parameters["ids"])

    @property
    def number(self) -> int:
        """Of the present state: grows with every change and every compaction."""
        return self._number

    def __repr__(self) -> str:
        return f"<softindex.LiveIndex: {len(self)} items, {self.dim} dimensions, state {self._number}, {self._place}>"

    # Writing

    def upsert(self, ids: Any, vectors: Any, *, log_bias: Any = None, bias: Any = None) -> int:
        """Add items, or replace those with the same ids.  They are on disk when this returns.

        Args:
            ids: (m,) integers or strings, the same kind for all items; none twice.
            vectors: (m, d), or (d,) with a single id.
            log_bias: (m,) log priors, for a catalogue that has them; 0 when None.
            bias: (m,) parts of the scores, for a catalogue that has them; 0 when None.

        Returns:
            The number of the state with these changes, as `Draws.snapshot` reports it.

        Raises:
            InputError: An argument does not fit; nothing was changed.
            SaveError: The disk is full or cannot be written; nothing was changed.
        """
        self._check_writable()
        names, rows = _named_rows(ids, vectors, self.dim)
        prior = self._per_item(log_bias, len(rows), "log_bias")
        column = self._per_item(bias, len(rows), "bias")
        if self._parameters["bias"]:
            rows = np.hstack([rows, np.zeros((len(rows), 1), np.float32) if column is None else column[:, None]])
        return self._commit("upsert", names, np.ascontiguousarray(rows, np.float32), prior)

    def remove(self, ids: Any, *, unknown: str = "error") -> int:
        """Remove items.  They are never drawn again from snapshots taken after this.

        Args:
            ids: (m,) ids, or a single one; none twice.
            unknown: "ignore": drop ids that the catalogue does not hold.

        Returns:
            The number of the state with these changes.

        Raises:
            UnknownIdError: An id is not in the catalogue; nothing was changed.
        """
        self._check_writable()
        ignore = check_choice(unknown, "unknown", ("error", "ignore")) == "ignore"
        names = _names(ids)
        with self._writing:
            self._check_kind(names)
            found = self._changes.find(names) if len(names) else np.empty(0, np.int64)
            if not ignore and (found < 0).any():
                lost = names[found < 0][0].item()
                raise UnknownIdError(f"id {lost!r} is not in this catalogue; nothing was removed.", lost)
            return self._commit("remove", names[found >= 0], None, None)

    def compact(self) -> None:
        """Fold the delta into the clusters now, and free the space of what was removed.

        Raises:
            SaveError: It could not be written; the catalogue is as before.
        """
        self._check_writable()
        assert self._compactor is not None
        self._compactor.run()

    def close(self) -> None:
        """Wait for a running compaction, and let others write.  Snapshots stay usable."""
        if self._process != os.getpid():
            return
        if self._compactor is not None:
            self._compactor.stop()
        with self._writing:
            if self._version is not None:
                self._version = None
                self._log.close()
                if self._lock is not None:
                    self._lock.release()

    def __enter__(self) -> LiveIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a LiveIndex cannot be pickled; open it in the other process with read_only=True.")

    # How it is done

    def _check_open(self) -> None:
        if self._version is None:
            raise InputError("this catalogue is closed; open it again with softindex.open(path).")
        self._check_process()

    def _check_process(self) -> None:
        # In a child, locks may be held by threads that do not exist there, and the items half changed.
        if self._process != os.getpid():
            raise InputError("this catalogue was opened before a fork; open it again in the new process.")

    def _check_writable(self) -> None:
        self._check_open()
        if self._lock is None:
            raise InputError("this catalogue was opened with read_only=True; open it without to change it.")

    def _per_item(self, values: Any, count: int, name: str) -> Floats | None:
        if values is not None and not self._parameters[name]:
            raise InputError(
                f"this catalogue was made without {name}; leave it out, or make one with it: "
                f"softindex.open(path, create=..., {name}=...)."
            )
        return check_per_item(None if values is None else np.atleast_1d(values), count, name=name)

    def _check_kind(self, names: Ids) -> None:
        kind = self._parameters["ids"]
        given = "strings" if names.dtype.kind == "U" else "integers"
        if kind is not None and len(names) and given != kind:
            raise InputError(f"got {given[:-1]} ids, but this catalogue has {kind[:-1]} ids.")

    def _commit(self, kind: str, names: Ids, rows: Floats | None, prior: Floats | None) -> int:
        with self._writing:
            self._check_kind(names)
            if not len(names):
                return self._number
            parameters = self._parameters
            if parameters["ids"] is None:
                parameters = {**parameters, "ids": "strings" if names.dtype.kind == "U" else "integers"}
            with self._log.explaining("be written"):
                changed = None if parameters is self._parameters else parameters
                self._log.commit(Operation(self._number + 1, kind, names, rows, prior), changed)
            with self._changing:
                if parameters is not self._parameters:
                    self._parameters = parameters
                    self._changes = self._empty_changes(None)
                # In the parts that readers find in the log: sums in another order would round differently.
                for part in pieces(len(names), rows):
                    taken = (None if array is None else array[part] for array in (rows, prior))
                    _apply(self._changes, kind, names[part], *taken)
                self._number += 1
                self._snapshot = None
                due = self._background and is_due(self._changes)
            if due and self._compactor is not None:
                self._compactor.wake()
            return self._number

    def _empty_changes(self, generation: Generation | None) -> Changes:
        parameters = self._parameters
        return Changes(generation, self._width, biased=parameters["log_bias"], strings=parameters["ids"] == "strings")

    def _load(self) -> None:
        """Read the state that was committed last."""
        for remaining in reversed(range(ATTEMPTS)):
            with self._log.explaining("be read"), self._log.transaction("DEFERRED"):
                version, manifest = self._log.version(), self._log.manifest()
                known = self._changes if self._is_known(manifest) else None
                self._parameters = manifest.parameters
                try:
                    changes = known or self._empty_changes(self._read(manifest))
                except StorageError:
                    # A compaction may have replaced the generation before its files were opened.
                    if not remaining or self._lock is not None:
                        raise
                    continue
                after = max(manifest.folded, self._number if known else 0)
                operations = list(self._log.operations(after, self._width, strings=changes.strings))
            with self._changing:
                for one in operations:
                    _apply(changes, one.kind, one.ids, one.vectors, one.log_bias)
                last = operations[-1].number if operations else 0
                self._number = max(last, manifest.number, manifest.folded, self._number)
                self._changes, self._snapshot, self._version = changes, None, version
            return

    def _is_known(self, manifest: Manifest) -> bool:
        """Whether only operations are missing."""
        if self._version is _NEVER or manifest.parameters["ids"] != self._parameters["ids"]:
            return False
        generation = self._changes.generation
        return manifest.generation == (None if generation is None else generation.name)

    def _read(self, manifest: Manifest) -> Generation | None:
        if manifest.generation is None:
            return None
        known = None if self._version is _NEVER else self._changes.generation
        return read_generation(self._place, manifest.generation, known=known)

    @property
    def _width(self) -> int:
        return int(self._parameters["dim"]) + bool(self._parameters["bias"])

    def _compact_once(self) -> None:
        """Fold what has changed until now; changes may go on meanwhile."""
        with self._writing:
            self._check_writable()
            changes = self._changes
            if not changes.rows and not changes.removed_since:
                return
            contents = self.snapshot()._contents if changes.count else None
            with self._changing:
                frozen = freeze(changes, contents, self._number)
            parameters = self._parameters
        try:
            made = fold(self._place, frozen, parameters)
        except OSError as error:
            raise SaveError(f"compaction of {self._place} failed ({error}); the catalogue is as before.") from error
        self._publish(made)

    def _publish(self, made: PublishedFold) -> None:
        with self._writing:
            number = self._number + 1
            manifest = Manifest(self._parameters, made.name, made.folded, number)
            with self._log.explaining("be written"), self._log.transaction():
                self._log.publish(manifest)
            generation = self._read(manifest)
            changes = self._empty_changes(generation)
            for one in self._log.operations(made.folded, self._width, strings=changes.strings):
                _apply(changes, one.kind, one.ids, one.vectors, one.log_bias)
            with self._changing:
                self._changes, self._number, self._snapshot = changes, number, None
            self._log.shrink()
        remove_unused(self._place, generation)


def _apply(changes: Changes, kind: str, names: NDArray[Any], rows: Floats | None, prior: Floats | None) -> None:
    if kind == "upsert" and rows is not None:
        changes.upsert(names, rows, prior)
    elif kind == "remove":
        changes.remove(names)
    else:
        raise StorageError(f"the log holds an operation {kind!r}; a newer softindex wrote it, install that one.")


def _names(ids: Any) -> Ids:
    single = np.ndim(ids) == 0
    table = [ids] if single else ids
    if not len(table):
        return np.empty(0, np.int64)
    names = check_ids(table, len(table))
    assert names is not None
    return names


def _named_rows(ids: Any, vectors: Any, dim: int) -> tuple[Ids, NDArray[Any]]:
    """The checked ids and vectors of an upsert."""
    array = as_array(vectors, "vectors")
    array = array[None] if array.ndim == 1 and np.ndim(ids) == 0 else array
    rows = check_matrix(array, "vectors")
    if rows.shape[1] != dim:
        raise InputError(
            f"vectors have {rows.shape[1]} dimensions but this catalogue has {dim}; encode them with the same model."
        )
    names = check_ids([ids] if np.ndim(ids) == 0 else ids, len(rows))
    if names is None:
        raise InputError("ids are missing; pass one id per vector.")
    check_vectors(rows)
    return names, rows
