"""Builds shards in Ray tasks: rows never pass through the driver, and what is finished is never built again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_count, check_seed
from softindex.builder import build_shard
from softindex.errors import InputError, SoftindexError, show
from softindex.loading import load
from softindex.partition import POINTS_PER_CENTROID, partition
from softindex.progress import reporting
from softindex.ray.manifest import Manifest, Shard, name_version, save_manifest, write_json
from softindex.ray.needed import connected
from softindex.ray.staging import stage
from softindex.records import Floats, Report
from softindex.vectors import read

__all__ = ["build"]

Piece = tuple[str, int, int, int]
"""A file, the rows of it that a shard holds (from, to), and the number of its first row among all."""
OPTIONS = ("dispersion", "codes", "sketch", "storage")
STAGED = "staged"


def build(
    source: Any,
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    vectors: str = "vector",
    clusters: int | None = None,
    seed: int = 0,
    threads: int = 1,
    memory: int | None = None,
    progress: bool = False,
    **options: Any,
) -> Manifest:
    """Build an index of several shards on the cluster that Ray is connected to.

    Centroids are trained once, on a sample of all files.  One task per shard then reads its rows, assigns and measures
    them and saves an index.  A build that was interrupted continues: finished shards are kept.  The same files and
    options change nothing.  Other files or options make a new build beside the old one, which those who have opened it
    go on reading; `shards.json` names the complete one that `open` opens.

    Args:
        source: Paths of files that `softindex.build` reads (`.npy`, `.parquet` and others), or a Ray Dataset with a
            column of vectors and a column "id".  A dataset is written to Parquet files first, by tasks; builds from it
            start from the beginning.
        path: A directory that all nodes see under this name.
        shards: Number of shards, with consecutive rows each; one per file when None.
        vectors: Column of a dataset that has the vectors.
        clusters: Clusters of each shard; `round(sqrt(rows of a shard))` when None.
        seed: Of the sample and the centroids.
        threads: Threads of each task, and the CPUs it asks Ray for.
        memory: Bytes of memory that a task asks Ray for; none when None.
        progress: Show progress bars on a terminal.
        options: `dispersion`, `codes`, `sketch` and `storage`, as for `softindex.build`.

    Returns:
        What `shards.json` says.  Ids are those of the files, or the numbers of rows in the order of the files.
    """
    ray = connected()
    needs = _check_options(options, threads, memory)
    target, staged = Path(path).absolute(), None
    target.mkdir(parents=True, exist_ok=True)
    if hasattr(source, "write_parquet"):
        staged = target / f"{STAGED}-{os.urandom(6).hex()}"
        source = stage(source, staged, vectors)
    files = _check_files(source)
    lengths = [rows for rows, _ in ray.get([ray.remote(_shape).options(**needs).remote(file) for file in files])]
    pieces = _cut(files, lengths, None if shards is None else check_count(shards, "shards"))
    plan = {"clusters": clusters, "seed": check_seed(seed), "options": dict(sorted(options.items()))}
    name = _fingerprint(files, len(pieces), plan)
    with reporting(progress) as report:
        made = _build_shards(ray, target / name, pieces, lengths, plan, (needs, threads, report))
    manifest = Manifest(name, tuple(made))
    manifest.describe()
    save_manifest(target, manifest)
    if staged is not None:
        shutil.rmtree(staged, ignore_errors=True)
    return manifest


def _check_options(options: dict[str, Any], threads: Any, memory: Any) -> dict[str, Any]:
    """Refuse options that a distributed build does not have; return what a task asks Ray for."""
    unknown = options.keys() - set(OPTIONS)
    if unknown:
        raise InputError(f"{min(unknown)} is not an option of a distributed build; use {', '.join(OPTIONS)}.")
    needs: dict[str, Any] = {"num_cpus": check_count(threads, "threads", 1024)}
    return needs if memory is None else {**needs, "memory": check_count(memory, "memory")}


def _build_shards(
    ray: Any, folder: Path, pieces: list[list[Piece]], lengths: Sequence[int], plan: dict[str, Any], how: Any
) -> list[Shard]:
    needs, threads, report = how
    folder.mkdir(exist_ok=True)
    total = sum(lengths)
    clusters = plan["clusters"] or max(1, round((total / len(pieces)) ** 0.5))
    centroids = folder / "centroids.npy"
    if not centroids.is_file():
        share = min(1.0, clusters * POINTS_PER_CENTROID / total)
        files = dict.fromkeys(piece[0] for part in pieces for piece in part)
        draw, train = (ray.remote(task).options(**needs) for task in (_draw_sample, _train))
        samples = [draw.remote(file, share, (plan["seed"], number)) for number, file in enumerate(files)]
        _finish(ray, [train.remote(str(centroids), clusters, plan["seed"], threads, *samples)], "centroids", report)
    one = ray.remote(_build_one).options(**needs)
    options = {**plan["options"], "seed": plan["seed"]}
    tasks = [
        one.remote(str(folder), f"shard-{number:05}", part, str(centroids), threads, options)
        for number, part in enumerate(pieces)
    ]
    made = [Shard(**found) for found in _finish(ray, tasks, "shards", report)]
    _check_distinct(ray, folder, made, needs, report)
    return made


def _check_distinct(ray: Any, folder: Path, made: list[Shard], needs: dict[str, Any], report: Report | None) -> None:
    """Refuse an id that two shards hold: each task compares the ids that have one remainder."""
    done = folder / "distinct"
    if done.is_file() or len(made) == 1:
        return
    count, paths = len(made), [str(folder.parent / shard.folder) for shard in made]
    one = ray.remote(_find_repeated).options(**needs)
    _finish(ray, [one.remote(paths, part, count) for part in range(count)], "comparing ids", report)
    done.touch()


def _finish(ray: Any, tasks: list[Any], stage: str, report: Report | None) -> list[Any]:
    """The results of all tasks; the first error ends the others."""
    waiting, done = list(tasks), 0
    try:
        while waiting:
            ready, waiting = ray.wait(waiting)
            ray.get(ready)
            done += len(ready)
            if report is not None:
                report(stage, done, len(tasks))
        return list(ray.get(tasks))
    except ray.exceptions.RayTaskError as error:
        for task in waiting:
            with suppress(ray.exceptions.RayError):
                ray.cancel(task)
        if isinstance(error.cause, SoftindexError):
            raise error.cause from error
        raise


def _check_files(source: Any) -> list[str]:
    """Absolute paths; a single path is one file, or all files of a directory."""
    if isinstance(source, str | os.PathLike):
        single = Path(source)
        source = sorted(one for one in single.iterdir() if one.is_file()) if single.is_dir() else [single]
    files = [os.path.abspath(os.fspath(one)) for one in source]
    if not files:
        raise InputError("there are no files to build from; pass at least one path.")
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise InputError(f"there is no file at {missing[0]}; check the path.")
    return files


def _cut(files: list[str], lengths: Sequence[int], shards: int | None) -> list[list[Piece]]:
    """The pieces of each shard: consecutive rows, about as many for each."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    total = int(starts[-1])
    if shards is not None and shards > total:
        raise InputError(f"shards is {shards} but there are {total} items; ask for at most that many.")
    ends = starts if shards is None else np.array([total * number // shards for number in range(shards + 1)])
    parts = []
    for begin, end in pairwise(ends):
        part = []
        for file, first, length in zip(files, starts, lengths, strict=False):
            low, high = max(int(begin), int(first)), min(int(end), int(first + length))
            if low < high:
                part.append((file, low - int(first), high - int(first), int(first)))
        parts.append(part)
    return [part for part in parts if part]


def _fingerprint(files: list[str], shards: int, plan: dict[str, Any]) -> str:
    stats = [(file, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in files]
    text = json.dumps([stats, shards, plan, version("softindex")], sort_keys=True)
    return f"build-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


# What runs in tasks


def _shape(file: str) -> tuple[int, int]:
    if file.endswith(".parquet"):
        from pyarrow import parquet

        return int(parquet.read_metadata(file).num_rows), 0
    vectors = read(file).vectors
    return vectors.shape[0], vectors.shape[1]


def _draw_sample(file: str, share: float, seed: tuple[int, int]) -> Floats:
    """Random rows of one file."""
    vectors = read(file).vectors
    rows = np.sort(np.random.default_rng(seed).choice(len(vectors), max(1, round(share * len(vectors))), replace=False))
    return np.asarray(vectors[rows], np.float32)


def _train(path: str, clusters: int, seed: int, threads: int, *samples: Floats) -> None:
    """Save the means of the clusters of a sample."""
    sample = np.concatenate(samples)
    found = partition(sample, min(clusters, len(sample)), seed=seed, threads=threads)
    sums = np.zeros((found.clusters, sample.shape[1]))
    np.add.at(sums, found.assignment, sample)
    counts = np.bincount(found.assignment, minlength=found.clusters)
    means = (sums[counts > 0] / counts[counts > 0, None]).astype(np.float32)
    temporary = f"{path}.{os.getpid()}.npy"
    np.save(temporary, means)
    os.replace(temporary, path)


def _build_one(
    folder: str, name: str, part: list[Piece], centroids: str, threads: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Build and save a shard, unless that is done; returns what the manifest says of it."""
    target, done = Path(folder) / name, Path(folder) / f"{name}.json"
    if done.is_file() and target.is_dir():
        found: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        if name_version(target) == found["version"]:
            return found
    vectors, ids = _read_pieces(part)
    index = build_shard(vectors, ids, np.load(centroids), threads=threads, **options)
    index.save(target)
    parameters = {**dict(load(target).parameters), "clusters": index.clusters}  # type: ignore[union-attr]
    relative = f"{Path(folder).name}/{name}"
    made = {"folder": relative, "items": len(index), "version": name_version(target), "parameters": parameters}
    write_json(done, made)
    return made


def _find_repeated(paths: list[str], part: int, parts: int) -> None:
    """Raise for an id that is in two shards, among those that fall into one part of all ids."""
    found = []
    for path in paths:
        ids: NDArray[Any] = load(path).ids  # type: ignore[union-attr]
        if ids.dtype.kind == "U":
            ids = np.array([one for one in ids.tolist() if crc32(one.encode()) % parts == part], np.str_)
        else:
            ids = ids[ids % parts == part]
        found.append(ids)
    values = np.sort(np.concatenate(found))
    repeated = np.flatnonzero(values[1:] == values[:-1])
    if len(repeated):
        raise InputError(f"id {show(values[repeated[0]].item())} is in more than one shard; ids must be distinct.")


def _read_pieces(part: list[Piece]) -> tuple[Floats, Any]:
    """The vectors and ids of a shard; files are read one at a time."""
    vectors: NDArray[np.float32] | None = None
    ids: list[Any] = []
    rows, filled = sum(high - low for _, low, high, _ in part), 0
    for file, low, high, first in part:
        source = read(file)
        found = source.vectors[low:high]
        if vectors is None:
            vectors = np.empty((rows, found.shape[1]), np.float32)
        if found.shape[1] != vectors.shape[1]:
            raise InputError(
                f"{file} has {found.shape[1]} dimensions but others have {vectors.shape[1]}; leave it out."
            )
        vectors[filled : filled + len(found)] = found
        filled += len(found)
        ids.append(np.arange(first + low, first + high) if source.ids is None else source.ids[low:high])
    kinds = {one.dtype.kind for one in ids}
    if len(kinds) > 1:
        raise InputError("some files have string ids and others integers; use one kind.")
    assert vectors is not None
    return vectors, np.concatenate(ids)
