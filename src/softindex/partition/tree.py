"""Divide the items by repeated 2-means, so that a walk down a tree replaces a scan of all cluster means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.blas import blas_threads
from softindex.blocks import blocks
from softindex.partition.frame import Frame, fit_frame
from softindex.partition.kmeans import ITERATIONS, check_clusters, silent, train
from softindex.partition.nearest import assign
from softindex.records import Branches, Floats, Integers, Partition, Report
from softindex.workers import workers

__all__ = ["LEAF_ITEMS", "grow"]

LEAF_ITEMS = 1024
"""Leaves up to this size are not split, unless the caller says otherwise."""
TRAINING_ITEMS = 1 << 13
"""Training items per node: two means need far fewer items than a large node has."""
SHARED_ITEMS = 1 << 16
"""Larger nodes are split by all threads together, in blocks; smaller ones by one thread each."""


class _ThisThread(Executor):
    """An executor that runs everything in the calling thread."""

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **_: Any) -> Iterator[Any]:
        """The built-in map."""
        return map(fn, *iterables)


@dataclass(slots=True)
class _Growing:
    """The tree so far.  Node i holds the items order[begins[i]:ends[i]]; children[i] is None for a leaf."""

    order: Integers
    begins: list[int] = field(default_factory=lambda: [0])
    ends: list[int] = field(default_factory=list)
    children: list[tuple[int, int] | None] = field(default_factory=lambda: [None])

    def members(self, node: int) -> Integers:
        return self.order[self.begins[node] : self.ends[node]]

    def divide(self, node: int, right: NDArray[np.bool_]) -> tuple[int, int]:
        """Give the node two children; each keeps its items in their input order.  Returns their numbers."""
        begin, end, members = self.begins[node], self.ends[node], self.members(node)
        members[:] = np.concatenate([members[~right], members[right]])
        middle, left = end - int(np.count_nonzero(right)), len(self.begins)
        self.begins += [begin, middle]
        self.ends += [middle, end]
        self.children += [None, None]
        self.children[node] = (left, left + 1)
        return left, left + 1


def grow(
    vectors: NDArray[Any],
    clusters: int | None,
    *,
    leaf_items: int | None = None,
    seed: int,
    threads: int,
    report: Report | None = None,
) -> tuple[Partition, Branches]:
    """Split the items by repeated 2-means; the leaves of the tree are the clusters of the partition.

    vectors (n, d) float32 or float16, finite, an array or a memmap.  With clusters None, split until no leaf holds more
    than leaf_items (LEAF_ITEMS when None).  Otherwise split the largest leaf (the first of equals) until there are that
    many.  Items that 2-means cannot separate are split in half.  No cluster is empty.

    The same seed gives the same tree for any number of threads: the random numbers for a node depend only on the seed
    and the position of the node.
    """
    n = len(vectors)
    if clusters is not None:
        check_clusters(clusters, n)
    growing = _Growing(np.arange(n), ends=[n])
    with blas_threads(1), workers(threads) as pool:
        smallest = (leaf_items or LEAF_ITEMS) if clusters is None else 1
        _grow(growing, vectors, clusters, smallest, seed, pool, report or silent)
    return _finish(growing)


def _grow(
    growing: _Growing,
    vectors: NDArray[Any],
    clusters: int | None,
    smallest: int,
    seed: int,
    pool: Executor,
    report: Report,
) -> None:
    n, count = len(vectors), 1
    waiting: list[tuple[int, int, int]] = []  # leaves to split: largest first, then in item order

    def sides(node: int, executor: Executor) -> NDArray[np.bool_]:
        begin, end = growing.begins[node], growing.ends[node]
        return _right_side(vectors, growing.members(node), np.random.default_rng([seed, begin, end]), executor)

    def offer(node: int) -> int:
        size = growing.ends[node] - growing.begins[node]
        if size <= smallest:
            return size
        heappush(waiting, (-size, growing.begins[node], node))
        return 0

    settled = offer(0)
    while waiting and (clusters is None or count < clusters):
        # Without a given number of clusters all of these are split, so their order does not matter.
        nodes = [heappop(waiting)[2] for _ in range(len(waiting) if clusters is None else 1)]
        small = [node for node in nodes if growing.ends[node] - growing.begins[node] <= SHARED_ITEMS]
        cuts = dict(zip(small, pool.map(lambda node: sides(node, _ThisThread()), small), strict=True))
        for node in nodes:
            right = cuts[node] if node in cuts else sides(node, pool)
            settled += sum(offer(child) for child in growing.divide(node, right))
            count += 1
        report("splitting", *((settled, n) if clusters is None else (count, clusters)))


def _right_side(
    vectors: NDArray[Any], members: Integers, random: np.random.Generator, executor: Executor
) -> NDArray[np.bool_]:
    """Which of the members (m,) go to the right: at least one, and not all."""
    labels = np.zeros(len(members), dtype=np.int32)
    if len(members) > 2:
        size = min(len(members), TRAINING_ITEMS)
        # In ascending order, so that a memmap is read from front to back.
        chosen = np.sort(random.choice(len(members), size, replace=False, shuffle=False))
        frame, sample = fit_frame(vectors[members[chosen]])
        centroids = train(sample, 2, random, executor, iterations=ITERATIONS, report=silent)
        _assign_members(vectors, members, centroids, frame, executor, labels)
    if not 0 < np.count_nonzero(labels) < len(labels):
        labels[:] = np.arange(len(labels)) >= (len(labels) + 1) // 2
    return labels.astype(bool)


def _assign_members(
    vectors: NDArray[Any],
    members: Integers,
    centroids: Floats,
    frame: Frame,
    executor: Executor,
    labels: NDArray[np.int32],
) -> None:
    def work(part: slice) -> None:
        for _ in assign(vectors[members[part]], centroids, _ThisThread(), frame=frame, labels=labels[part]):
            pass

    for _ in executor.map(work, blocks(len(members), SHARED_ITEMS // 4)):
        pass


def _finish(growing: _Growing) -> tuple[Partition, Branches]:
    """Number nodes and leaves depth first."""
    leaves = sorted(
        (growing.begins[node], growing.ends[node]) for node, pair in enumerate(growing.children) if pair is None
    )
    assignment = np.empty(len(growing.order), dtype=np.int32)
    assignment[growing.order] = np.repeat(
        np.arange(len(leaves), dtype=np.int32), [end - begin for begin, end in leaves]
    )
    clusters = {begin: cluster for cluster, (begin, _) in enumerate(leaves)}
    nodes, waiting = [], [0]
    while waiting:
        node = waiting.pop()
        pair = growing.children[node]
        if pair is not None:
            nodes.append(node)
            waiting += [pair[1], pair[0]]
    numbers = {node: number for number, node in enumerate(nodes)}
    below = [child for node in nodes for child in growing.children[node] or ()]
    children = [numbers[child] if child in numbers else -1 - clusters[growing.begins[child]] for child in below]
    begins = np.array([growing.begins[child] for child in below], dtype=np.int64)
    ends = np.array([growing.ends[child] for child in below], dtype=np.int64)
    paired = np.array(children, dtype=np.int64).reshape(-1, 2)
    return Partition(assignment, len(leaves)), Branches(paired, begins, ends)
