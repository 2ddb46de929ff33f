"""The columns of a log of decisions: one schema for the service, for logs written in process, and for all readers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from softindex.errors import InputError, SaveError
from softindex.optional import need

__all__ = ["COLUMNS", "OPTIONS", "REWARDS", "arrow", "decision_id", "make_table", "reading", "sync", "write_file"]

COLUMNS: dict[str, str] = {
    "decision_id": "text",
    "time": "time",
    "request_id": "text",
    "query_number": "integer",
    "index": "text",
    "snapshot": "integer",
    "query": "vector",
    "query_hash": "text",
    "method": "text",
    "temperature": "number",
    "seed": "seed",
    "probes": "integer",
    "tolerance": "number",
    "replace": "flag",
    "top_p": "number",
    "k": "integer",
    "candidates": "integer",
    "exclude": "ids",
    "allow": "ids",
    "unknown": "text",
    "ids": "ids",
    "log_prob": "numbers",
    "error": "number",
    "low": "numbers",
    "high": "numbers",
    "log_partition": "number",
    "items_scored": "integer",
    "confidence": "number",
}
"""Names and kinds.  One row per query that was drawn for; what a call did not say, or does not have, is null.

`decision_id` names the row, and rewards are joined by it.  `index` is a hash of the manifest of a saved index, and
`snapshot` the number of the state of a catalogue.  `query` is null where only hashes are kept.  `log_prob` is that of
each draw; of each step without replacement."""
OPTIONS = ("method", "probes", "tolerance", "replace", "top_p", "k", "candidates", "unknown")
"""The columns that say, beside the temperature and the items left out, which law a row was drawn from."""
REWARDS: dict[str, str] = {"decision_id": "text", "time": "time", "position": "integer", "reward": "number"}
"""Of a file of rewards: `position` counts the items of a decision from 0, and is null for a reward of all of them."""


def decision_id(request_id: str, query_number: int) -> str:
    """The name of a row: the request, and the number of the query in it."""
    return f"{request_id}:{query_number}"


def make_table(columns: Mapping[str, Any], kinds: Mapping[str, str] = COLUMNS) -> Any:
    """Return an Arrow table from sequences or Arrow arrays.  Ids are integers or strings, as the first one is."""
    pa, _ = arrow()
    identity = pa.string() if _is_text(columns.get("ids", ())) else pa.int64()
    types = {
        "text": pa.string(),
        "time": pa.timestamp("us", "UTC"),
        "integer": pa.int64(),
        "seed": pa.uint64(),
        "number": pa.float64(),
        "numbers": pa.list_(pa.float64()),
        "vector": pa.list_(pa.float32()),
        "ids": pa.list_(identity),
        "flag": pa.bool_(),
    }
    found = {}
    for name, kind in kinds.items():
        column = columns[name]
        found[name] = column if isinstance(column, pa.Array) else pa.array(column, types[kind])
    return pa.table(found)


def write_file(table: Any, path: str) -> None:
    """Write a table as a Parquet file: after a crash it is there as a whole, or not at all."""
    _, parquet = arrow()
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.tmp")
    try:
        parquet.write_table(table, temporary, compression="zstd")
        sync(temporary)
        os.rename(temporary, path)
        sync(folder or ".")
    except OSError as error:
        raise SaveError(f"{path} could not be written ({error}); choose another directory or make room.") from error


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Say in a sentence that a file cannot be read."""
    pa, _ = arrow()
    try:
        yield
    except (pa.lib.ArrowException, OSError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise InputError(f"{path} cannot be read ({reason}); restore it, or take it out of the log.") from error


def sync(path: str) -> None:
    """Wait until a file or a directory is on the disk itself."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def arrow() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet, imported on first use."""
    first, second = (need(name, user="a log of decisions", extra="data") for name in ("pyarrow", "pyarrow.parquet"))
    return first, second


def _is_text(ids: Any) -> bool:
    pa, _ = arrow()
    if isinstance(ids, pa.Array):
        return bool(pa.types.is_string(ids.type.value_type))
    first: Sequence[Any] = ids[0] if len(ids) else ()
    return bool(len(first)) and isinstance(first[0], (str, np.str_))
