"""Draws for a dataset of queries, in workers that load the index once; what is written is never drawn again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_count, check_seed
from softindex.errors import InputError
from softindex.index import Index
from softindex.loading import load
from softindex.ray.manifest import NAME, read_manifest
from softindex.ray.needed import connected, need
from softindex.sharded import ShardedIndex, join

__all__ = ["sample_dataset"]


def sample_dataset(
    dataset: Any,
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    temperature: float,
    n: int = 1,
    key: str = "id",
    query: str = "query",
    seed: int = 0,
    batch_size: int = 4096,
    workers: int = 1,
    threads: int = 1,
    **options: Any,
) -> int:
    """Draw n items for every query of a dataset and write them to Parquet files, each query exactly once.

    Each worker maps the index, or all shards of it, once.  A job that was interrupted continues when it is called
    again: queries whose keys are in the files of `output` are skipped.  Files appear complete or not at all, and a
    batch that Ray repeats writes the same file again.

    Args:
        dataset: A Ray Dataset with a key and a query vector in each row.  Keys must differ.
        path: A saved index, or shards that `softindex.ray.build` made; all nodes see it under this name.
        output: A directory for the files, which all nodes see.  They have the columns `key`, "items" and "log_prob"
            (lists of n), and "error".
        temperature: As for `Index.sample`, like `n` and all `options`.
        key: Name of the column of keys: integers or strings.
        query: Name of the column of vectors.
        seed: The same seed gives the same draws, in whatever batches the queries come (copies of a query in one batch
            excepted, which draw differently).
        batch_size: Queries of one call and of one file.
        workers: Processes that draw.  Leave a CPU of the cluster for the tasks that read the dataset: without one Ray
            Data waits forever.
        threads: Threads of each.

    Returns:
        Number of queries that were drawn for in this call.
    """
    connected()
    need("pyarrow.parquet")
    target = _prepare(dataset, output, (key, query))
    options |= {"temperature": temperature, "n": check_count(n, "n"), "seed": check_seed(seed), "threads": threads}
    arguments = (str(Path(path).absolute()), str(target), key, query, options)
    counted = dataset.map_batches(
        _Worker,
        fn_constructor_args=arguments,
        batch_size=check_count(batch_size, "batch_size"),
        batch_format="numpy",
        compute=need("ray.data").ActorPoolStrategy(size=check_count(workers, "workers")),
        num_cpus=check_count(threads, "threads", 1024),
    )
    # Only counts come back: one number per batch.
    return int(sum(int(batch["drawn"].sum()) for batch in counted.iter_batches(batch_format="numpy")))


def _prepare(dataset: Any, output: Any, columns: tuple[str, str]) -> Path:
    """The directory of the output, without the unfinished files of an interrupted job."""
    known = set(dataset.schema().names)
    for name in columns:
        if name not in known:
            raise InputError(f"the dataset has no column {name!r}; it has {', '.join(sorted(known))}.")
    target = Path(output).absolute()
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.glob(".*.partial"):
        stale.unlink(missing_ok=True)
    return target


class _Worker:
    """Draws for batches of queries."""

    def __init__(self, path: str, output: str, key: str, query: str, options: dict[str, Any]) -> None:
        self._index = _load(path)
        self._output, self._key, self._query, self._options = Path(output), key, query, options
        # What earlier calls have written.  Files of this call are of other queries.
        self._done = _written(self._output, key)

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        keys = np.asarray(batch[self._key])
        keys = keys.astype(np.str_) if keys.dtype.kind == "O" else keys
        left = np.flatnonzero(~_among(keys, self._done))
        if len(left):
            queries = np.stack([np.asarray(row, np.float32) for row in batch[self._query]])[left]
            draws = self._index.sample(queries, **self._options)
            self._write(keys[left], draws)
        return {"drawn": np.array([len(left)])}

    def _write(self, keys: NDArray[Any], draws: Any) -> None:
        """One file, named by its keys: a batch that is repeated replaces it by the same."""
        arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
        columns = {
            self._key: arrow.array(keys.tolist()),
            "items": arrow.array(draws.ids.tolist()),
            "log_prob": arrow.array(draws.log_prob.tolist()),
            "error": arrow.array(np.asarray(draws.error)),
        }
        name = hashlib.sha256(repr(keys.tolist()).encode()).hexdigest()[:24]
        temporary = self._output / f".{name}.{os.getpid()}.partial"
        parquet.write_table(arrow.table(columns), temporary)
        temporary.replace(self._output / f"draws-{name}.parquet")


def _written(folder: Path, key: str) -> NDArray[Any]:
    """The keys, sorted, of what was written so far."""
    files = sorted(folder.glob("draws-*.parquet"))
    if not files:
        return np.empty(0, np.int64)
    parquet = need("pyarrow.parquet")
    parts = [parquet.read_table(file, columns=[key]).column(key).to_pylist() for file in files]
    return np.unique(np.concatenate([np.asarray(part) for part in parts]))


def _among(keys: NDArray[Any], done: NDArray[Any]) -> NDArray[np.bool_]:
    if not len(done):
        return np.zeros(len(keys), bool)
    place = np.minimum(np.searchsorted(done, keys), len(done) - 1)
    return np.asarray(done[place] == keys)


def _load(path: str) -> Index | ShardedIndex:
    """An index, or all shards of one, mapped."""
    if (Path(path) / NAME).is_file():
        return join([_index(str(Path(path) / shard.folder)) for shard in read_manifest(path).shards])
    return _index(path)


def _index(path: str) -> Index:
    loaded: object = load(path)
    if not isinstance(loaded, Index):
        raise InputError(f"{path} does not hold an index; pass what softindex.build or softindex.ray.build saved.")
    return loaded
