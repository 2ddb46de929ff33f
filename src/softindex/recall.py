"""How much of the best items a search of part of the clusters misses: measured at build, and read for every answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import check_count, check_fraction
from softindex.blocks import rows_per_block
from softindex.errors import InputError
from softindex.kernels import BestResults, Engine, Law, NativeRestriction, Request, preferred_target
from softindex.laws import ADAPTIVE, EXACT, LAWS, TOP_K, find_law
from softindex.records import Doubles, Floats, Integers, Json
from softindex.residuals import stored_vectors

__all__ = ["UNMEASURED", "measure_curve", "plan_search", "states_recall"]

QUERIES = 256
BEST = 10
LEVELS = (0.9, 0.7, 0.5, 0.3, 0.15, 0.07, 0.03, 0.01, 0.003)
"""Shares of the best items that the moments of the clusters predict to be missed."""
UNMEASURED = np.zeros((len(LEVELS), 2))
"""The curve that takes what is predicted for what is missed."""
QUERY_VALUES = 1 << 22
"""Values of all queries together: fewer of them where they are long, so that they stay small beside the items."""
MARGIN = 2.0
"""Standard errors added to what was measured: items are a little easier to find for an item than for a new query."""


def measure_curve(
    arrays: Mapping[str, NDArray[Any]],
    dispersion: str,
    *,
    biased: bool,
    seed: int,
    threads: int,
    items: tuple[Integers, Callable[[Integers], Floats]] | None = None,
) -> Doubles:
    """Return a curve (9, 2): the share of the ten best that is predicted to be missed, and what was missed indeed.

    Queries are items, drawn by the seed, each without itself.  arrays: those of the index, but for the curve; biased:
    whether the last coordinate of an item is its bias; items: their positions, and what reads the vectors there, where
    they do not lie in one array.
    """
    n, width = len(stored_vectors(arrays) if items is None else items[0]), arrays["means"].shape[1]
    if n < 2:
        return UNMEASURED
    count = min(QUERIES, n, rows_per_block(QUERY_VALUES, width, least=16))
    chosen = np.random.default_rng(seed).choice(n, count, replace=False)
    if items is None:
        queries: Floats = stored_vectors(arrays)[chosen]
    else:
        chosen = items[0][chosen]
        queries = items[1](chosen)
    if biased:
        queries[:, -1] = 1.0
    engine = Engine({**arrays, "sketch_recall": UNMEASURED}, preferred_target())
    law = find_law(TOP_K, dispersion, False)
    alone = NativeRestriction(np.arange(len(chosen) + 1), chosen)
    k = min(BEST, n - 1)

    def search(missed: float) -> tuple[Floats, Doubles]:
        return _search(engine, Request(queries, law, 1.0, -1, missed, alone, 0, threads), len(queries), k)

    truth, _ = search(0.0)
    curve = []
    for level in LEVELS:
        scores, predicted = search(level)
        lost = (scores < truth[:, -1:]).mean(axis=1)
        error = max(float(lost.std()) / len(lost) ** 0.5, 1.0 / lost.size / k)
        curve.append((float(predicted.mean()), min(1.0, float(lost.mean()) + MARGIN * error)))
    return np.array(sorted(curve))


def _search(engine: Engine, request: Request, b: int, k: int) -> tuple[Floats, Doubles]:
    """Scores (b, k) of the best, and the shares (b,) predicted to be missed."""
    scores, statistics = np.empty((b, k), np.float32), np.empty((2, b))
    positions: Integers = np.empty((b, k), np.int64)
    results = BestResults(positions, scores, np.empty((b, k), np.bool_), statistics, np.empty(b, np.int64))
    engine.top_k(request, results)
    return scores, statistics[1]


def plan_search(probes: Any, recall: Any, parameters: Json) -> tuple[Law, int, float]:
    """The law that predicts, clusters to search at most, and share that may be missed, for the engine.

    Without a sketch nothing was measured; and what was does not hold for items with log biases.
    """
    if probes is not None and recall is not None:
        raise InputError("probes and recall both say how much to search; leave one of them out.")
    predicting = find_law(TOP_K, parameters["dispersion"], False)
    if probes is not None:
        return predicting, check_count(probes, "probes"), 0.0
    # Asking for everything is asking for a proof.
    share = 1.0 if recall is None or recall == 1.0 else check_fraction(recall, "recall", 0.99)
    if share == 1.0 or not states_recall(parameters):
        return LAWS[EXACT], ADAPTIVE, 0.0
    return predicting, ADAPTIVE, 1.0 - share


def states_recall(parameters: Json) -> bool:
    """Whether an index knows what recall to expect where the best items are not proven."""
    return bool(parameters["sketch"] and not parameters["log_bias"])
