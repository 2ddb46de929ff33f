"""Two to four codebooks, and codes of each class, that approximate class vectors: product or residual quantization."""

from __future__ import annotations

import itertools
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from softindex.blas import blas_threads
from softindex.errors import InputError
from softindex.partition.kmeans import assign, fit_frame, silent, train
from softindex.records import Doubles, Floats
from softindex.workers import workers

__all__ = ["QUANTIZERS", "WARM_ITERATIONS", "Codebooks", "Metric", "Quantizer", "fit_codebooks", "query_metric"]

Quantizer = Literal["rq", "pq"]
QUANTIZERS: tuple[str, ...] = get_args(Quantizer)
ITERATIONS = 25
WARM_ITERATIONS = 8
POINTS = 1024
"""Classes per codeword that k-means is trained on."""
BLOCK = 1 << 16
FLATTEST = 1e-4
"""Queries are taken to vary by at least this fraction of the mean in every direction, as later ones may."""


@dataclass(frozen=True, slots=True)
class Codebooks:
    """Class i is approximated by the sum over m of books[m, codes[i, m]].

    A codebook of a product quantizer is zero outside its own part of the coordinates.
    """

    books: Floats
    """(codebooks, k, d)"""
    codes: NDArray[np.int32]
    """(n, codebooks)"""

    def merged(self) -> tuple[Floats, Floats, NDArray[np.int32]]:
        """The same as two codebooks: all sums within the first half of these, all within the second, and codes (n, 2).

        Three codebooks become one of k^2 and one of k codewords, four become two of k^2.
        """
        half = (len(self.books) + 1) // 2
        (first, first_codes), (second, second_codes) = (
            _merge(self.books[part], self.codes[:, part]) for part in (slice(0, half), slice(half, None))
        )
        return first, second, np.stack([first_codes, second_codes], axis=1)


def _merge(books: Floats, codes: NDArray[np.int32]) -> tuple[Floats, NDArray[np.int32]]:
    """All sums (k^m, d) of one codeword from each book (m, k, d), and the sum (n,) that belongs to the codes (n, m)."""
    sums, numbers = books[0], codes[:, 0]
    for place in range(1, len(books)):
        sums = (sums[:, None] + books[place]).reshape(-1, books.shape[2])
        numbers = numbers * books.shape[1] + codes[:, place]
    return np.ascontiguousarray(sums), numbers


@dataclass(frozen=True, slots=True)
class Metric:
    """Coordinates w A in which distance is the error of the dot product with a typical query."""

    forth: Floats
    """(d, d) A"""
    back: Floats
    """(d, d) inverse of A"""


def query_metric(queries: Floats, parts: int = 2) -> Metric:
    """The metric of queries (b, d): |r A|^2 is the mean square of the products r.z.

    Directions in which queries hardly vary are bounded from below, see FLATTEST.  The directions are dealt out in
    turn, from the widest, so that each of the parts that a product quantizer cuts has about the same variance.
    """
    wide = queries.astype(np.float64)
    # No centring: a shift of all logits leaves the softmax unchanged, but residuals differ between classes.
    values, vectors = np.linalg.eigh(wide.T @ wide / len(wide))
    mean = float(values.mean())
    if not mean > 0:
        identity = np.eye(wide.shape[1], dtype=np.float32)
        return Metric(identity, identity)
    order = np.argsort(-values)
    order = np.concatenate([order[part::parts] for part in range(parts)])
    roots = np.sqrt(np.maximum(values[order], FLATTEST * mean))
    directions = vectors[:, order]
    return Metric((directions * roots).astype(np.float32), (directions / roots).T.astype(np.float32))


def fit_codebooks(
    items: Floats,
    codewords: int,
    quantizer: str,
    *,
    codebooks: int = 2,
    weights: Doubles | None = None,
    metric: Metric | None = None,
    start: Floats | None = None,
    iterations: int | None = None,
    seed: int = 0,
    threads: int = 1,
) -> Codebooks:
    """Fit codebooks to items (n, d) by k-means and assign their codes.

    Args:
        items: Class vectors, (n, d).
        codewords: Size k of each codebook.
        quantizer: "rq" or "pq".
        codebooks: Number of codebooks.
        weights: Weight of each class in k-means, (n,); None weights all equally.
        metric: Coordinates in which distances are measured; None uses the items as they are.
        start: Codebooks (codebooks, k, d) to start from, which needs fewer iterations.
        iterations: Iterations of k-means; 0 with `start` keeps the codebooks and only assigns codes.
        seed: Seed of k-means.
        threads: Number of threads.
    """
    rounds = iterations if iterations is not None else ITERATIONS if start is None else WARM_ITERATIONS
    # Overflow is reported by the check below.
    with np.errstate(over="ignore", invalid="ignore"):
        rows = items if metric is None else items @ metric.forth
        before = start if start is None or metric is None else start @ metric.forth
    _check_finite(rows)
    books = np.zeros((codebooks, codewords, items.shape[1]), np.float32)
    codes = np.zeros((len(items), codebooks), np.int32)
    random = np.random.default_rng(seed)
    with blas_threads(1), workers(threads) as pool:
        for place, part in enumerate(_coordinates(items.shape[1], quantizer, codebooks)):
            if part.start == part.stop:
                continue
            # Residuals are written into the array below, so the caller's items must be copied.
            copied = np.array if rows is items else np.asarray
            target = copied(rows[:, part], order="C")
            given = None if before is None else np.ascontiguousarray(before[place][:, part])
            books[place, :, part], codes[:, place] = _quantize(target, codewords, weights, given, rounds, random, pool)
            if quantizer == "rq" and place + 1 < codebooks:
                _subtract(target, books[place], codes[:, place])
                rows = target
    if metric is not None:
        books = books @ metric.back
    _check_finite(books)
    return Codebooks(books, codes)


def _coordinates(d: int, quantizer: str, codebooks: int) -> list[slice]:
    """Coordinates of each codebook: all of them for a residual quantizer, equal parts for a product quantizer."""
    if quantizer == "rq":
        return [slice(0, d)] * codebooks
    # Sizes differ by at most one, the larger parts first.
    borders = np.cumsum([0, *(len(range(place, d, codebooks)) for place in range(codebooks))]).tolist()
    return [slice(*pair) for pair in itertools.pairwise(borders)]


def _subtract(rows: Floats, book: Floats, codes: NDArray[np.int32]) -> None:
    """Replace rows by their residuals, block by block to save memory."""
    for begin in range(0, len(rows), BLOCK):
        here = slice(begin, begin + BLOCK)
        rows[here] -= book[codes[here]]


def _check_finite(values: Floats) -> None:
    # A finite sum proves that all values are finite, and needs no copy.
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(values.sum(dtype=np.float64)):
            raise InputError("items or queries are too large for float32: their codewords overflow; scale them down.")


def _quantize(
    rows: Floats,
    codewords: int,
    weights: Doubles | None,
    start: Floats | None,
    iterations: int,
    random: np.random.Generator,
    pool: Executor,
) -> tuple[Floats, NDArray[np.int32]]:
    """One codebook (codewords, d) and the codes (n,) of the rows; codewords beyond the number of rows are zero."""
    chosen, counted = _choose(len(rows), codewords * POINTS, weights, random)
    frame, sample = fit_frame(rows[chosen])
    used = min(codewords, len(sample))
    given = None if start is None else frame(start)[:used]
    centroids = train(sample, used, random, pool, iterations=iterations, report=silent, weights=counted, start=given)
    labels = np.zeros(len(rows), np.int32)
    for _ in assign(rows, centroids, pool, frame=frame, labels=labels):
        pass
    book = np.zeros((codewords, rows.shape[1]), np.float32)
    book[:used] = (centroids + frame.centre) / frame.scale
    return book, labels


def _choose(
    n: int, most: int, weights: Doubles | None, random: np.random.Generator
) -> tuple[NDArray[np.int64], Doubles | None]:
    """Rows to train on and their weights: the heaviest rows, and a sample of the others that stands for all of them."""
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
