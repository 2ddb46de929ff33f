"""Two codebooks and two codes a class, whose codewords stand for the vectors of the classes: by product or residual."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from softindex.partition.kmeans import POINTS_PER_CENTROID, assign, fit_frame, silent, train
from softindex.records import Doubles, Floats

__all__ = ["QUANTIZERS", "Codebooks", "Metric", "fit_codebooks", "query_metric"]

QUANTIZERS = ("rq", "pq")
ITERATIONS = 10
WARM_ITERATIONS = 4
FLATTEST = 1e-4
"""Directions in which queries hardly vary count as if they varied by this part of the mean: they may yet."""


@dataclass(frozen=True, slots=True)
class Codebooks:
    """Class i is near first[codes[i, 0]] + second[codes[i, 1]]; a product quantizer has zeros in half of each."""

    first: Floats
    """(k, d)"""
    second: Floats
    """(k, d)"""
    codes: NDArray[np.int32]
    """(n, 2)"""


@dataclass(frozen=True, slots=True)
class Metric:
    """Coordinates w A in which distance is the error of the dot product with a typical query."""

    forth: Floats
    """(d, d) A"""
    back: Floats
    """(d, d) its inverse: dot products of a query with c need no more than c back."""


def query_metric(queries: Floats) -> Metric:
    """The metric of queries (b, d): |r A|^2 is the mean square of the products r z, over their mean where it is flat.

    The directions alternate from the widest, so that each half of the coordinates has about as much of it.
    """
    wide = queries.astype(np.float64)
    # What adds the same to all logits changes no softmax, but a residual is not the same for all: no centring.
    values, vectors = np.linalg.eigh(wide.T @ wide / len(wide))
    mean = float(values.mean())
    if not mean > 0:
        identity = np.eye(wide.shape[1], dtype=np.float32)
        return Metric(identity, identity)
    order = np.argsort(-values)
    order = np.concatenate([order[0::2], order[1::2]])
    roots = np.sqrt(np.maximum(values[order], FLATTEST * mean))
    turned = vectors[:, order]
    return Metric((turned * roots).astype(np.float32), (turned / roots).T.astype(np.float32))


def fit_codebooks(
    items: Floats,
    codewords: int,
    quantizer: str,
    *,
    weights: Doubles | None = None,
    metric: Metric | None = None,
    start: tuple[Floats, Floats] | None = None,
    iterations: int | None = None,
    seed: int = 0,
    threads: int = 1,
) -> Codebooks:
    """Fit codebooks to items (n, d) by k-means, and give each its codes.

    weights (n,): how much each class counts.  start: codebooks to begin with, which takes fewer iterations; with none
    the books stay as they are, and only codes are given.
    """
    rounds = iterations if iterations is not None else ITERATIONS if start is None else WARM_ITERATIONS
    turned = items if metric is None else items @ metric.forth
    before = start if start is None or metric is None else (start[0] @ metric.forth, start[1] @ metric.forth)
    d = items.shape[1]
    # The second book of a residual quantizer is for what the first leaves; that of a product for the other half.
    parts = [slice(0, d)] * 2 if quantizer == "rq" else [slice(0, (d + 1) // 2), slice((d + 1) // 2, d)]
    books = np.zeros((2, codewords, d), np.float32)
    codes = np.zeros((len(items), 2), np.int32)
    random = np.random.default_rng(seed)
    rest = turned
    with ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        for place, part in enumerate(parts):
            if part.start == part.stop:
                continue
            rows = np.ascontiguousarray(rest[:, part])
            given = None if before is None else np.ascontiguousarray(before[place][:, part])
            books[place, :, part], codes[:, place] = _quantize(rows, codewords, weights, given, rounds, random, pool)
            if quantizer == "rq" and place == 0:
                rest = rest - books[0][codes[:, 0]]
    if metric is not None:
        books = books @ metric.back
    return Codebooks(books[0], books[1], codes)


def _quantize(
    rows: Floats,
    codewords: int,
    weights: Doubles | None,
    start: Floats | None,
    iterations: int,
    random: np.random.Generator,
    pool: ThreadPoolExecutor,
) -> tuple[Floats, NDArray[np.int32]]:
    """One codebook (codewords, d) and the codes (n,) of the rows.

    Where there are fewer rows than codewords, the rest are zeros that nobody uses.
    """
    chosen, counted = _choose(len(rows), codewords * POINTS_PER_CENTROID, weights, random)
    frame, sample = fit_frame(rows[chosen])
    used = min(codewords, len(sample))
    given = None if start is None else frame(start)[:used]
    found = train(sample, used, random, pool, iterations=iterations, report=silent, weights=counted, start=given)
    labels = np.zeros(len(rows), np.int32)
    for _ in assign(rows, found, pool, frame=frame, labels=labels):
        pass
    book = np.zeros((codewords, rows.shape[1]), np.float32)
    book[:used] = (found + frame.centre) / frame.scale
    return book, labels


def _choose(
    n: int, most: int, weights: Doubles | None, random: np.random.Generator
) -> tuple[NDArray[np.int64], Doubles | None]:
    """Rows to train with, and how much each counts: the heaviest, and of the others a fair sample in their place."""
    if n <= most:
        return np.arange(n), weights
    if weights is None:
        return np.sort(random.choice(n, most, replace=False, shuffle=False)), None
    heavy = np.argpartition(-weights, most // 2)[: most // 2]
    light = np.delete(np.arange(n), heavy)
    light = random.choice(light, most - len(heavy), replace=False, shuffle=False)
    chosen = np.sort(np.concatenate([heavy, light]))
    counted = weights[chosen].copy()
    counted[~np.isin(chosen, heavy)] *= (n - len(heavy)) / len(light)
    return chosen, counted
