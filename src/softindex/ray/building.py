"""Builds shards in Ray tasks: rows never pass through the driver, and what is finished is never built again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_count, check_seed
from softindex.builder import build_shard
from softindex.errors import InputError, SaveError, SoftindexError, show
from softindex.loading import load
from softindex.partition import POINTS_PER_CENTROID, partition
from softindex.progress import reporting
from softindex.ray.manifest import NAME, Manifest, Shard, name_version, save_manifest, write_json
from softindex.ray.needed import connected
from softindex.ray.reading import Piece, draw_sample, read_pieces, read_shape
from softindex.ray.staging import staging
from softindex.records import Floats, Report

__all__ = ["build"]

OPTIONS = ("dispersion", "codes", "sketch", "storage")


def build(
    source: Any,
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    vectors: str = "vector",
    bias: str | None = None,
    log_bias: str | None = None,
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
        bias: Column of the dataset, or of Parquet files, that has the `bias` of `softindex.build`; none when None.
        log_bias: The same for its `log_bias`.
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
    plan = _check_plan(clusters, seed, options, {"bias": bias, "log_bias": log_bias})
    count = None if shards is None else check_count(shards, "shards")
    target = Path(path).absolute()
    with _directory(target), staging(source, target, vectors, plan["columns"]) as found:
        files = _check_files(found)
        lengths = _read_lengths(ray, files, needs)
        pieces = _cut(files, lengths, count)
        name = _fingerprint(files, len(pieces), plan)
        with reporting(progress) as report, _without_what_was_refused(target, name):
            made = _build_shards(ray, target / name, pieces, lengths, plan, (needs, threads, report))
            manifest = Manifest(name, tuple(made))
            manifest.describe()
        save_manifest(target, manifest)
    return manifest


@contextmanager
def _directory(target: Path) -> Iterator[None]:
    """Make the directory; one that was made and stayed empty goes again."""
    made = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"{target} cannot be made a directory ({error}); pass another path.") from error
    try:
        yield
    finally:
        if made:
            # Not if there is anything in it.
            with suppress(OSError):
                target.rmdir()


@contextmanager
def _without_what_was_refused(target: Path, name: str) -> Iterator[None]:
    """Shards of a build that was interrupted are kept; those of files that are refused are of no use."""
    try:
        yield
    except InputError:
        complete = (target / NAME).is_file() and name in (target / NAME).read_text(encoding="utf-8")
        if not complete:
            shutil.rmtree(target / name, ignore_errors=True)
        raise


def _check_plan(clusters: Any, seed: Any, options: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """What decides the result, but for the files and the number of shards."""
    for what, name in columns.items():
        if not isinstance(name, str | None):
            raise InputError(f"{what} is {show(name)}; expected the name of a column.")
    return {
        "clusters": None if clusters is None else check_count(clusters, "clusters"),
        "seed": check_seed(seed),
        "options": dict(sorted(options.items())),
        "columns": {what: name for what, name in columns.items() if name is not None},
    }


def _read_lengths(ray: Any, files: list[str], needs: dict[str, Any]) -> list[int]:
    """The rows of every file; files without rows, or with other dimensions, are refused."""
    shapes = _finish(ray, [ray.remote(read_shape).options(**needs).remote(file) for file in files], "files", None)
    width, first = 0, files[0]
    for file, (rows, found) in zip(files, shapes, strict=True):
        if not rows:
            raise InputError(f"{file} holds no rows; leave it out.")
        if found and width and found != width:
            raise InputError(f"{file} has {found} dimensions but {first} has {width}; leave one of them out.")
        width, first = (found, file) if found and not width else (width, first)
    return [rows for rows, _ in shapes]


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
        draw, train = (ray.remote(task).options(**needs) for task in (draw_sample, _train))
        columns = plan["columns"]
        samples = [draw.remote(file, share, (plan["seed"], number), columns) for number, file in enumerate(files)]
        asked = (str(centroids), clusters, plan["seed"], threads, list(files))
        _finish(ray, [train.remote(*asked, *samples)], "centroids", report)
    one = ray.remote(_build_one).options(**needs)
    options = {**plan["options"], "seed": plan["seed"], "threads": threads}
    tasks = [
        one.remote(str(folder), f"shard-{number:05}", part, str(centroids), plan["columns"], options)
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
        source = sorted(one for one in single.iterdir() if _is_part(one)) if single.is_dir() else [single]
    try:
        files = [os.path.abspath(os.fsdecode(one)) for one in source]
    except TypeError as error:
        raise InputError(f"got {show(source)} to build from; expected paths of files, or a Ray Dataset.") from error
    if not files:
        raise InputError("there are no files to build from; pass at least one path.")
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise InputError(f"there is no file at {missing[0]}; check the path.")
    return files


def _is_part(file: Path) -> bool:
    """Whether a file of a directory holds items: others leave hidden files and marks such as _SUCCESS beside them."""
    return file.is_file() and not file.name.startswith((".", "_"))


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


def _train(path: str, clusters: int, seed: int, threads: int, files: list[str], *samples: Floats) -> None:
    """Save the means of the clusters of a sample, which has a part from each file."""
    widths = [part.shape[1] for part in samples]
    for file, width in zip(files, widths, strict=True):
        if width != widths[0]:
            raise InputError(f"{file} has {width} dimensions but {files[0]} has {widths[0]}; leave one of them out.")
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
    folder: str, name: str, part: list[Piece], centroids: str, columns: dict[str, str], options: dict[str, Any]
) -> dict[str, Any]:
    """Build and save a shard, unless that is done; returns what the manifest says of it."""
    target, done = Path(folder) / name, Path(folder) / f"{name}.json"
    if done.is_file() and target.is_dir():
        found: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        if name_version(target) == found["version"]:
            return found
    vectors, ids, biases = read_pieces(part, columns)
    index = build_shard(vectors, ids, np.load(centroids), **{**options, **biases})
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
