"""Writes a Ray Dataset to Parquet files that every task can read, batch by batch, in the tasks of Ray Data."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.errors import InputError
from softindex.ray.needed import need

__all__ = ["staging"]

ROWS = 65536


@contextmanager
def staging(source: Any, target: Path, column: str, biases: dict[str, str]) -> Iterator[Any]:
    """The files that hold the ids, vectors and biases of a dataset, for as long as needed; another source as it is."""
    if not hasattr(source, "write_parquet"):
        yield source
        return
    folder = target / f"staged-{os.urandom(6).hex()}"
    try:
        yield _stage(source, folder, column, list(biases.values()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stage(dataset: Any, folder: Path, column: str, others: list[str]) -> list[Path]:
    schema = dataset.schema()
    if schema is None:
        raise InputError("the dataset holds no rows; pass one that does.")
    names = set(schema.names)
    for name in ("id", column, *others):
        if name not in names:
            raise InputError(f"the dataset has no column {name!r}; it has {', '.join(sorted(names))}.")
    folder.mkdir()
    write = partial(_write, folder=str(folder), column=column, others=others)
    counts = dataset.map_batches(write, batch_size=ROWS, batch_format="numpy")
    # Only counts come back.
    for _ in counts.iter_batches(batch_format="numpy"):
        pass
    return sorted(folder.glob("part-*.parquet"))


def _write(batch: dict[str, NDArray[Any]], folder: str, column: str, others: list[str]) -> dict[str, NDArray[Any]]:
    """One file, named by its ids: a batch that Ray repeats replaces it by the same."""
    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    vectors = np.stack([np.asarray(row, np.float32) for row in batch[column]])
    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.ravel()), vectors.shape[1])
    ids = batch["id"].tolist()
    name = hashlib.sha256(repr(ids).encode()).hexdigest()[:24]
    temporary = Path(folder) / f".{name}.{os.getpid()}"
    columns = {name: arrow.array(batch[name]) for name in others}
    parquet.write_table(arrow.table({**columns, "id": arrow.array(ids), "vector": lists}), temporary)
    temporary.replace(Path(folder) / f"part-{name}.parquet")
    return {"rows": np.array([len(ids)])}
