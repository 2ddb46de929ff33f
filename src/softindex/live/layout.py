"""Where items go in a new generation: which clusters stay as they are, grow by a run, or are written anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from softindex.contents import Contents
from softindex.live.assigning import Moves
from softindex.live.generation import Generation
from softindex.partition import partition
from softindex.records import Integers

__all__ = ["Layout", "lay_out"]

MOST_DEAD = 0.2
MOST_RUNS = 16
"""Runs of a cluster: each costs a jump in memory."""
MOST_APPENDED = 0.25
"""Part of a cluster that came since it was written: probes sample stretches, and items that came lie at its end."""
LARGEST = 4.0
"""Times the target size; a larger cluster is split."""
MOST_GARBAGE = 1.15
"""Rows in the segments over items: beyond that all clusters are written into a new one."""
MOST_SEGMENTS = 32


@dataclass(frozen=True, slots=True)
class Layout:
    """A new generation, in terms of the positions of the state that it is made from."""

    offsets: Integers
    """(k + 1,)"""
    sources: Integers
    """(n,) the old position of the item at each new one, removed items of clusters that stay included."""
    origins: Integers
    """(k,) the old cluster whose moments stay valid, or -1 where they have to be measured."""
    runs: Integers
    """(u, 3) of first position, segment and row, the new segment being the last."""
    written: Integers
    """(m,) the old positions of the rows of the new segment."""
    kept_segments: tuple[int, ...]
    """Old numbers of the old segments that stay, in the order of their new ones."""


class _Builder:
    """Collects clusters one after the other."""

    def __init__(self, segments: int) -> None:
        self.sources: list[Integers] = []
        self.origins: list[int] = []
        self.sizes: list[int] = []
        self.runs: list[tuple[int, int, int]] = []
        self.written: list[Integers] = []
        self._new_segment, self._rows, self._extent = segments, 0, 0

    def keep(self, positions: Integers, runs: Integers, ends: Integers) -> None:
        """Items that stay where they are, in these runs."""
        self.sources.append(positions)
        for (begin, segment, row), end in zip(runs.tolist(), ends.tolist(), strict=True):
            self.runs.append((self._extent, segment, row))
            self._extent += end - begin

    def write(self, positions: Integers) -> None:
        """Items that go to the new segment."""
        if not len(positions):
            return
        self.sources.append(positions)
        self.written.append(positions)
        self.runs.append((self._extent, self._new_segment, self._rows))
        self._extent += len(positions)
        self._rows += len(positions)

    def end_cluster(self, origin: int, first: int) -> None:
        """The items added since there were `first` are a cluster."""
        self.origins.append(origin)
        self.sizes.append(self._extent - first)

    @property
    def extent(self) -> int:
        return self._extent


def lay_out(contents: Contents, generation: Generation, moves: Moves) -> Layout:
    """Plan a generation with these moves."""
    homeless, labels = moves.homeless, moves.labels
    k, offsets = generation.clusters, generation.arrays["offsets"]
    runs = _cut(generation.arrays["runs"], offsets)
    removed = contents.arrays["removed"]
    counts = contents.sizes()[:k]
    left = np.zeros(generation.extent, bool)
    left[homeless[homeless < generation.extent]] = True
    # Clusters whose items all became homeless vanish.
    emptied = np.bincount(generation.cluster_of(np.flatnonzero(left)), minlength=k) if left.any() else np.zeros(k, int)
    order = np.argsort(labels, kind="stable")
    coming = np.split(homeless[order], np.searchsorted(labels[order], np.arange(1, k)))
    first_run = np.searchsorted(runs[:, 0], offsets)
    run_ends = np.append(runs[1:, 0], generation.extent)
    sizes, target = np.diff(offsets), len(contents) ** 0.5
    came = np.array([len(part) for part in coming])
    first_ends = np.append(run_ends, generation.extent)[first_run[:-1]]
    appended = np.where(sizes > 0, offsets[1:] - first_ends, 0) + came
    dead = sizes - counts > MOST_DEAD * sizes
    big = counts + came > LARGEST * target
    rewritten = dead | big | (np.diff(first_run) >= MOST_RUNS) | (appended > MOST_APPENDED * (sizes + came))
    staying = (counts - emptied > 0) | (came > 0)
    founded = sum(len(items) for items in moves.founded)
    rewritten |= _is_wasteful(generation, rewritten & staying, counts, int(came.sum()) + founded, staying)
    made = _Builder(len(generation.segments))
    for cluster in np.flatnonzero(staying).tolist():
        places = np.arange(offsets[cluster], offsets[cluster + 1])
        first = made.extent
        if not rewritten[cluster]:
            span = slice(first_run[cluster], first_run[cluster + 1])
            made.keep(places, runs[span], run_ends[span])
            made.write(coming[cluster])
            made.end_cluster(-1 if came[cluster] else cluster, first)
            continue
        there = np.setdiff1d(places, removed, assume_unique=True)
        items = np.concatenate([there[~left[there]], coming[cluster]])
        np.random.default_rng(cluster).shuffle(items)
        parts = _split(contents, items, target) if big[cluster] else [items]
        measured = dead[cluster] or came[cluster] or len(parts) > 1
        for part in parts:
            first = made.extent
            made.write(part)
            made.end_cluster(-1 if measured else cluster, first)
    for items in moves.founded:
        first = made.extent
        made.write(np.random.default_rng(first).permutation(items))
        made.end_cluster(-1, first)
    return _finish(made)


def _cut(runs: Integers, offsets: Integers) -> Integers:
    """The same runs, cut where clusters begin."""
    begins = np.unique(np.concatenate([runs[:, 0], offsets[:-1]]))
    begins = begins[begins < offsets[-1]]
    run = np.searchsorted(runs[:, 0], begins, side="right") - 1
    return np.stack([begins, runs[run, 1], runs[run, 2] + begins - runs[run, 0]], axis=1)


def _joined(runs: Integers) -> Integers:
    """The same runs, those that continue one another being one."""
    length = np.diff(runs[:, 0])
    continued = (runs[1:, 1] == runs[:-1, 1]) & (runs[1:, 2] == runs[:-1, 2] + length)
    kept: Integers = runs[np.concatenate([[True], ~continued])]
    return kept


def _is_wasteful(
    generation: Generation,
    rewritten: NDArray[np.bool_],
    counts: Integers,
    came: int,
    staying: NDArray[np.bool_],
) -> bool:
    """Whether the segments would hold too many rows that nobody needs."""
    rows = sum(len(segment) for segment in generation.segments)
    rows += int(counts[rewritten].sum()) + came
    return rows > MOST_GARBAGE * (int(counts[staying].sum()) + came) or len(generation.segments) >= MOST_SEGMENTS


def _split(contents: Contents, items: Integers, target: float) -> list[Integers]:
    """The items of a cluster that grew too large, by k-means."""
    parts = max(2, round(len(items) / target))
    labels = partition(contents.vectors_at(items), parts, seed=0, threads=1).assignment
    return [items[labels == part] for part in range(parts) if (labels == part).any()]


def _finish(made: _Builder) -> Layout:
    runs = _joined(np.array(made.runs, np.int64).reshape(-1, 3))
    kept, numbers = np.unique(runs[:, 1], return_inverse=True)
    runs[:, 1] = numbers.reshape(-1)
    written = np.concatenate(made.written) if made.written else np.empty(0, np.int64)
    old = kept[:-1] if len(written) else kept
    return Layout(
        np.concatenate([[0], np.cumsum(made.sizes)]).astype(np.int64),
        np.concatenate(made.sources),
        np.array(made.origins, np.int64),
        runs,
        written,
        tuple(old.tolist()),
    )
