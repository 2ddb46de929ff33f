"""The log of decisions: one row per query that was drawn for, in Parquet files, with all that its propensity needs.

A row is first appended to a journal, which survives kill -9, and journals become Parquet files when they are full or
old.  A journal that a killed process left is turned into a Parquet file by the next one that starts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from softindex.decisions import schema
from softindex.errors import InputError, SaveError
from softindex.records import Draws
from softindex.service.operations import Call

__all__ = ["DecisionLog", "convert", "recover"]

JOURNAL, PARQUET = ".journal", ".parquet"
MOST_ROWS, MOST_SECONDS = 50_000, 300.0
"""After which a journal becomes a Parquet file."""
HEAD = struct.Struct("<II")
"""Before each row: its length and its checksum, by which a torn end is found."""


class Row(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One query that was drawn for, under the names of `softindex.decisions.schema.COLUMNS`."""

    decision_id: str
    time: int
    """Microseconds since 1970, UTC."""
    request_id: str
    query_number: int
    """Of the query in its request."""
    index: str | None = None
    """Hash of the manifest of a saved index."""
    snapshot: int | None = None
    """Number of the state of a catalogue."""
    query: bytes | None = None
    """float32, unless only hashes are kept."""
    query_hash: str
    method: str
    temperature: float
    seed: int
    probes: int | None = None
    tolerance: float | None = None
    replace: bool = True
    top_p: float | None = None
    k: int | None = None
    candidates: int | None = None
    exclude: list[Any] | None = None
    allow: list[Any] | None = None
    unknown: str | None = None
    ids: list[Any]
    log_prob: list[float]
    """Of each draw; of each step without replacement."""
    error: float
    low: list[float] | None = None
    high: list[float] | None = None
    log_partition: float | None = None
    items_scored: int
    confidence: float | None = None


class DecisionLog:
    """Rows of one worker process.  Used from its event loop, but for what says otherwise."""

    def __init__(self, folder: str, *, queries: str = "full") -> None:
        schema.arrow()
        try:
            os.makedirs(folder, exist_ok=True)
            self._folder, self._full = folder, queries == "full"
            self._number, self.lost = 0, 0
            self._encoder = msgspec.msgpack.Encoder()
            self._begin()
        except OSError as error:
            raise InputError(f"decisions cannot be logged in {folder} ({error}); choose another directory.") from error

    def add(self, call: Call, draws: Draws, request_id: str, index: str | None) -> None:
        """Append the rows of a call; they survive the end of the process when this returns."""
        try:
            rows = b"".join(self._packed(row) for row in self._rows(call, draws, request_id, index))
            if os.write(self._file, rows) != len(rows):
                raise OSError("the disk is full")
            self._count += len(draws.ids)
        except OSError as error:
            # Serving goes on; the counter says that the log is not complete.
            self.lost += 1
            sys.stderr.write(f"softindex: a decision could not be logged ({error}).\n")

    def due(self) -> bool:
        """Whether the journal should become a Parquet file."""
        return self._count >= MOST_ROWS or (self._count > 0 and time.monotonic() - self._begun > MOST_SECONDS)

    def switch(self) -> tuple[str, int]:
        """Begin a new journal; returns the path and the descriptor of the old one, for `finish`."""
        old = self._path, self._file
        self._begin()
        return old

    def finish(self, path: str, file: int) -> None:
        """Turn a journal into a Parquet file.  For any thread."""
        try:
            convert(path)
        finally:
            os.close(file)

    def sync(self) -> None:
        """Write the journal to the disk itself: until then a loss of power may take the last rows."""
        with suppress(OSError):
            os.fsync(self._file)

    def close(self) -> None:
        """Turn what there is into a Parquet file."""
        self.finish(self._path, self._file)

    def _begin(self) -> None:
        self._number += 1
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        name = f"decisions-{stamp}-{os.getpid()}-{self._number}"
        temporary = os.path.join(self._folder, f".{name}.tmp")
        self._file = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY, 0o600)
        # Locked before it has its name: a process that starts takes what has a name and no lock.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._path = os.path.join(self._folder, name + JOURNAL)
        os.rename(temporary, self._path)
        self._count, self._begun = 0, time.monotonic()

    def _packed(self, row: Row) -> bytes:
        content = self._encoder.encode(row)
        return HEAD.pack(len(content), zlib.crc32(content)) + content

    def _rows(self, call: Call, draws: Draws, request_id: str, index: str | None) -> Iterator[Row]:
        body: Any = call.body
        names = ("probes", "tolerance", "replace", "top_p", "k", "candidates", "unknown")
        options = {name: value for name in names if (value := getattr(body, name, UNSET)) is not UNSET}
        now, single = time.time_ns() // 1000, draws.ids.ndim == 1
        queries = np.asarray(call.queries[0], np.float32)

        def part(values: Any, row: int) -> Any:
            return None if values is None else np.asarray(values)[() if single else row].tolist()

        temperatures = np.broadcast_to(body.temperature, 1 if single else len(draws.ids))
        estimate = draws.log_partition
        for row in range(1 if single else len(draws.ids)):
            query = np.ascontiguousarray(queries if single else queries[row]).tobytes()
            yield Row(
                decision_id=schema.decision_id(request_id, row),
                time=now,
                request_id=request_id,
                query_number=row,
                index=index,
                snapshot=draws.snapshot,
                query=query if self._full else None,
                query_hash=hashlib.sha256(query).hexdigest()[:32],
                method=draws.method,
                temperature=float(temperatures[row]),
                seed=draws.seed,
                exclude=_listed(body.exclude, row, call.index),
                allow=_listed(body.allow, row, call.index),
                ids=part(draws.ids, row),
                log_prob=part(draws.log_prob, row),
                error=part(draws.error, row),
                low=part(draws.low, row),
                high=part(draws.high, row),
                log_partition=None if estimate is None else part(estimate.value, row),
                items_scored=part(draws.items_scored, row),
                confidence=draws.confidence,
                **options,
            )


def recover(folder: str) -> int:
    """Turn the journals that killed processes left into Parquet files; returns how many there were."""
    found = 0
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.endswith(JOURNAL):
            continue
        with suppress(FileNotFoundError, BlockingIOError):
            file = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its owner may have finished between the two lines above.
                if os.path.exists(path):
                    convert(path)
                    found += 1
            finally:
                os.close(file)
    return found


def convert(path: str) -> None:
    """Write the rows of a journal as a Parquet file beside it, atomically, and remove the journal."""
    rows = list(_read(path))
    try:
        if rows:
            schema.write_file(_table(rows), path.removesuffix(JOURNAL) + PARQUET)
        os.remove(path)
    except (OSError, SaveError) as error:
        raise SaveError(f"{path} could not be written as Parquet ({error}); it is kept, and tried again.") from error


def _read(path: str) -> Iterator[Row]:
    """The rows of a journal, up to one that is torn."""
    with open(path, "rb") as file:
        content = file.read()
    decoder, place = msgspec.msgpack.Decoder(Row), 0
    while place + HEAD.size <= len(content):
        length, checksum = HEAD.unpack_from(content, place)
        body = content[place + HEAD.size : place + HEAD.size + length]
        if len(body) < length or zlib.crc32(body) != checksum:
            return
        yield decoder.decode(body)
        place += HEAD.size + length


def _table(rows: list[Row]) -> Any:
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in schema.COLUMNS}
    columns["query"] = [None if query is None else np.frombuffer(query, np.float32) for query in columns["query"]]
    return schema.make_table(columns)


def _listed(chosen: Any, row: int, index: Any) -> list[Any] | None:
    """The ids for one query, from a list for all of them or one per query; those that a mask selects."""
    if not isinstance(chosen, list):
        return None
    nested = any(isinstance(one, list) or one is None for one in chosen)
    ids: list[Any] | None = chosen[row] if nested else chosen
    if ids and isinstance(ids[0], bool):
        # A mask has no more entries than a request may have ids, so the index is small.
        selected: list[Any] = np.asarray(index.ids)[np.array(ids)].tolist()
        return selected
    return ids
