"""The operation log and the manifest of a catalogue, in SQLite: what is committed here has happened."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from softindex.errors import CorruptIndexError, FormatVersionError, NotAnIndexError, SaveError, StorageError
from softindex.records import Floats, Json

__all__ = ["DATABASE", "Log", "Manifest", "Operation", "pieces"]

DATABASE = "catalogue.sqlite"
FORMAT = 1
APPLICATION = 0x736F6678
"""PRAGMA application_id: these files are ours."""
PIECE_BYTES = 8 << 20
"""A large batch is one transaction of rows of about this size: SQLite holds a row in memory."""
BUSY_SECONDS = 10.0
CHECKPOINT_PAGES = 256
"""Pages in SQLite's log from which on they are moved to the database, and the log is written from its start again."""
RESERVED_BYTES = 32 + (CHECKPOINT_PAGES + 64) * (24 + 4096)
"""Room of SQLite's log that is written in advance: a sync of a file that grows also has to record its new size."""

_SCHEMA = """
CREATE TABLE manifest (one INTEGER PRIMARY KEY CHECK (one = 1), parameters TEXT NOT NULL, generation TEXT,
    folded INTEGER NOT NULL, number INTEGER NOT NULL);
CREATE TABLE operations (row INTEGER PRIMARY KEY, number INTEGER NOT NULL, kind TEXT NOT NULL, ids BLOB NOT NULL,
    vectors BLOB, log_bias BLOB);
"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a catalogue consists of."""

    parameters: Json
    """What all its items have in common."""
    generation: str | None
    """Directory of the clusters; None before the first compaction of an empty catalogue."""
    folded: int
    """Operations up to this number are part of the generation."""
    number: int
    """Of the state when the generation was published."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One change, or a part of one that came in a large batch; parts have the same number."""

    number: int
    kind: str
    """"upsert" or "remove"."""
    ids: NDArray[Any]
    vectors: Floats | None = None
    log_bias: Floats | None = None


class Log:
    """A connection to the database of a catalogue: one that writes, or one of many that read."""

    def __init__(self, place: str, connection: sqlite3.Connection) -> None:
        self._place = place
        self._connection = connection

    @classmethod
    def create(cls, place: str, parameters: Json, generation: str | None) -> Log:
        """A new database; it is complete once this returns."""
        connection = _connect(f"file:{quote(os.path.join(place, DATABASE))}?mode=rwc")
        log = cls(place, connection)
        with log.explaining("be created"):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            log._prepare_to_write()
            with log.transaction():
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
                row = (json.dumps(dict(parameters), sort_keys=True), generation)
                connection.execute("INSERT INTO manifest VALUES (1, ?, ?, 0, 0)", row)
        log._reserve()
        return log

    @classmethod
    def open(cls, place: str, *, write: bool) -> Log:
        """The database of an existing catalogue."""
        path = os.path.join(place, DATABASE)
        if not os.path.isfile(path):
            raise NotAnIndexError(f"{place} is not a live catalogue: it has no {DATABASE}; make one with create=...")
        target = f"file:{quote(path)}?mode={'rw' if write else 'ro'}"
        log = cls(place, _connect(target))
        try:
            with log.explaining("be read"):
                log._check_format()
        except StorageError:
            log.close()
            if write or os.access(place, os.W_OK) or _has_content(path + "-wal"):
                raise
            # On a read-only disk SQLite cannot make the files that readers share; without a log it needs none.
            log = cls(place, _connect(target + "&immutable=1"))
            with log.explaining("be read"):
                log._check_format()
        if write:
            with log.explaining("be written"):
                log._prepare_to_write()
            log._reserve()
        return log

    def _check_format(self) -> None:
        application = self._one("PRAGMA application_id")
        if application != APPLICATION:
            raise NotAnIndexError(
                f"the {DATABASE} in {self._place} is not that of a live catalogue; pass another path."
            )
        version = self._one("PRAGMA user_version")
        if version > FORMAT:
            raise FormatVersionError(
                f"{self._place} has format {version}, but this softindex reads up to {FORMAT}; install a newer one."
            )

    def _prepare_to_write(self) -> None:
        # In WAL mode with FULL, a commit is one append and one sync, and readers never wait.
        mode = self._one("PRAGMA journal_mode = WAL")
        if mode != "wal":
            raise SaveError(f"{self._place} is on a file system where SQLite has no write-ahead log; use a local disk.")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA journal_size_limit = 16777216")
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")

    def _reserve(self) -> None:
        """Extend SQLite's log by zeros, before anything else is written.

        Its format ends at the first frame whose salt and checksum do not fit, so zeros after the last one mean nothing.
        A disk without room for them is no error: the log then grows with every change.
        """
        with suppress(OSError):
            file = os.open(os.path.join(self._place, DATABASE + "-wal"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                _fill_up(file, RESERVED_BYTES)
            finally:
                os.close(file)

    def _one(self, query: str, *values: Any) -> Any:
        return self._connection.execute(query, values).fetchone()[0]

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """All that happens inside is committed, or none of it."""
        self._connection.execute(f"BEGIN {kind}")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def explaining(self, what: str) -> Iterator[None]:
        """Errors of SQLite as sentences."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._explain(error, what) from error

    def _explain(self, error: sqlite3.DatabaseError, what: str) -> StorageError:
        path = os.path.join(self._place, DATABASE)
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return CorruptIndexError(f"{path} is damaged ({error}); restore the catalogue from a copy.")
        advice = "check its permissions and the disk"
        if code == sqlite3.SQLITE_FULL:
            advice = "make room on the disk and try again"
        failed = f"{path} could not {what}: {error}; {advice}."
        return StorageError(failed) if what == "be read" else SaveError(failed + " Nothing was changed.")

    def manifest(self) -> Manifest:
        """The manifest that was committed last."""
        row = self._connection.execute("SELECT parameters, generation, folded, number FROM manifest").fetchone()
        if row is None:
            raise CorruptIndexError(f"{self._place} has no manifest; restore the catalogue from a copy.")
        return Manifest(json.loads(row[0]), row[1], row[2], row[3])

    def commit(self, operation: Operation, parameters: Json | None = None) -> None:
        """Log one change, and other parameters with it where they are given.  It is on disk when this returns."""
        parts = pieces(len(operation.ids), operation.vectors)
        if len(parts) == 1 and parameters is None:
            # SQLite commits a single statement by itself.
            self._insert(operation, parts[0])
            return
        with self.transaction():
            for part in parts:
                self._insert(operation, part)
            if parameters is not None:
                changed = (json.dumps(dict(parameters), sort_keys=True),)
                self._connection.execute("UPDATE manifest SET parameters = ?", changed)

    def _insert(self, operation: Operation, part: slice) -> None:
        vectors, log_bias = operation.vectors, operation.log_bias
        self._connection.execute(
            "INSERT INTO operations (number, kind, ids, vectors, log_bias) VALUES (?, ?, ?, ?, ?)",
            (
                operation.number,
                operation.kind,
                _encode(operation.ids[part]),
                None if vectors is None else vectors[part].tobytes(),
                None if log_bias is None else log_bias[part].tobytes(),
            ),
        )

    def publish(self, manifest: Manifest) -> None:
        """Make a generation the present one, and forget the operations that are part of it, inside a transaction."""
        row = (manifest.generation, manifest.folded, manifest.number)
        self._connection.execute("UPDATE manifest SET generation = ?, folded = ?, number = ?", row)
        self._connection.execute("DELETE FROM operations WHERE number <= ?", (manifest.folded,))

    def shrink(self) -> None:
        """Give the space of forgotten operations back to the disk."""
        with suppress(sqlite3.Error):
            # Frees one page per step, and only a script is stepped to its end.
            self._connection.executescript("PRAGMA incremental_vacuum")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._reserve()

    def operations(self, after: int, width: int, *, strings: bool) -> Iterator[Operation]:
        """The operations with larger numbers, in order; width: numbers in a vector."""
        query = "SELECT number, kind, ids, vectors, log_bias FROM operations WHERE number > ? ORDER BY row"
        for number, kind, ids, vectors, log_bias in self._connection.execute(query, (after,)):
            rows = None if vectors is None else np.frombuffer(vectors, np.float32).reshape(-1, width)
            bias = None if log_bias is None else np.frombuffer(log_bias, np.float32)
            yield Operation(number, kind, _decode(ids, strings=strings), rows, bias)

    def version(self) -> int:
        """Changes when another connection commits; takes microseconds."""
        return int(self._one("PRAGMA data_version"))

    def close(self) -> None:
        """Close the connection; the last one to close leaves a single file."""
        with suppress(sqlite3.Error):
            self._connection.close()


def pieces(count: int, vectors: Floats | None) -> list[slice]:
    """The parts in which a change of this many items is logged."""
    step = count if vectors is None else max(1, PIECE_BYTES // (4 * vectors.shape[1]))
    return [slice(start, start + step) for start in range(0, count, step)]


def _connect(target: str) -> sqlite3.Connection:
    try:
        # Threads take turns by a lock of the catalogue.
        return sqlite3.connect(
            target, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS, cached_statements=16
        )
    except sqlite3.Error as error:
        raise StorageError(f"{target} could not be opened: {error}; check its permissions and the disk.") from error


def _fill_up(file: int, size: int) -> None:
    """Append zeros to the file up to this size, or nothing where the disk has no room for all of them."""
    before = os.fstat(file).st_size
    missing = size - before
    if missing <= 0:
        return
    try:
        complete = os.write(file, bytes(missing)) == missing
        os.fdatasync(file)
    except OSError:
        complete = False
    if not complete:
        os.ftruncate(file, before)


def _has_content(path: str) -> bool:
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False


def _encode(ids: NDArray[Any]) -> bytes:
    if ids.dtype.kind == "i":
        return np.ascontiguousarray(ids, "<i8").tobytes()
    return json.dumps(ids.tolist()).encode("ascii")


def _decode(data: bytes, *, strings: bool) -> NDArray[Any]:
    return np.array(json.loads(data), np.str_) if strings else np.frombuffer(data, "<i8").astype(np.int64, copy=False)
