"""Runs requests and puts the engine's results into records: allocates arrays and explains what the engine threw."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import MOST_RESULTS, too_many
from softindex.calibration import SCALE
from softindex.errors import CorruptIndexError, InputError, SoftindexError
from softindex.ids import IdMap
from softindex.kernels import BestResults, DrawResults, Engine, Request
from softindex.laws import CERTIFIED, PROVEN_METHODS, TREE_METHODS
from softindex.records import Doubles, Draws, Estimate, Integers, TopK
from softindex.restrictions import Restriction

__all__ = [
    "NOWHERE",
    "Shape",
    "bound_log_partition",
    "calibrated_log_partition",
    "draw",
    "estimate_log_partition",
    "find_best",
    "log_probabilities",
    "measure_masses",
    "spread_positions",
]

NOWHERE = -1
"""To the engine: the position of a step of a slate that is no item."""

_THROWN = (MemoryError, RuntimeError, IndexError)


Shape = tuple[int, int, bool]
"""Rows b and columns of a result, and whether one query without a row axis was given."""


def draw(
    engine: Engine, ids: IdMap, request: Request, shape: Shape, method: str, part: Restriction | None, *, seed: int
) -> Draws:
    """Return the draws of a request; part: what it is restricted to."""
    b, n, single = shape
    left = low = high = None
    if b * n > MOST_RESULTS:
        raise too_many(b, n)
    try:
        positions, log_prob = np.empty((b, n), np.int64), np.empty((b, n))
        if part is not None:
            left = np.empty(b, np.int64)
        elif method == CERTIFIED:
            low, high = np.empty((b, n)), np.empty((b, n))
    except (MemoryError, ValueError) as thrown:
        raise too_many(b, n) from thrown
    scored, statistics = np.empty(b, np.int64), np.empty((4, b))
    try:
        engine.sample(request, DrawResults(positions, log_prob, scored, statistics, low, high, left))
        if part is not None and left is not None:
            part.check_nucleus(left, n)
        names = ids.at(positions)
    except _THROWN as thrown:
        raise _explain(thrown, b, n) from thrown
    log_partition = None if method in TREE_METHODS else _estimate(statistics, 1, single, method in PROVEN_METHODS)
    if not single:
        return Draws(names, log_prob, statistics[0], scored, method, seed, log_partition, low, high)
    if low is not None and high is not None:
        low, high = low[0], high[0]
    return Draws(names[0], log_prob[0], statistics[0, 0], scored[0], method, seed, log_partition, low, high)


def log_probabilities(engine: Engine, request: Request, positions: Integers) -> Doubles:
    """Return log-probabilities (b, m) of the items at positions (b, m)."""
    b, m = positions.shape
    result = _empty(b, m, np.float64)
    try:
        engine.log_prob(request, positions, result)
    except _THROWN as thrown:
        raise _explain(thrown, b, m) from thrown
    return result


def estimate_log_partition(
    engine: Engine, request: Request, shape: Shape, *, bounded: bool, scored: Integers | None = None
) -> Estimate:
    """Return log Z of a request's queries, with bounds where the engine computes some; scored (b,): gets the items."""
    b, _, single = shape
    values = np.empty((3, b))
    try:
        engine.log_partition(request, values, np.empty(b, np.int64) if scored is None else scored)
    except _THROWN as thrown:
        raise _explain(thrown, b, 1) from thrown
    return _estimate(values, 0, single, bounded)


def bound_log_partition(engine: Engine, request: Request, guess: Request | None, shape: Shape) -> Estimate:
    """Return log Z within the bounds of a request.

    guess: where the bounds hold with a confidence only, and are far apart, the request whose estimate is the value.
    Without it the bounds are proven, and near each other.
    """
    bounds = estimate_log_partition(engine, request, shape, bounded=True)
    if guess is None:
        return bounds
    # Between wide bounds the default is a far better guess than the middle.
    value = estimate_log_partition(engine, guess, shape, bounded=False).value
    inside = np.clip(value, bounds.low, bounds.high)
    return Estimate(inside[()], bounds.low, bounds.high, "bound")


def calibrated_log_partition(
    engine: Engine, request: Request, shape: Shape, factor: float | Doubles, scored: Integers | None = None
) -> Estimate:
    """Return log Z of a request's queries, plus and minus `factor` times their stated error and its scale.

    scored (b,): gets the items that were scored.
    """
    b, _, single = shape
    try:
        positions, log_prob, statistics = np.empty((b, 1), np.int64), np.empty((b, 1)), np.empty((4, b))
        scored = np.empty(b, np.int64) if scored is None else scored
        # A draw also reports the error that its law states; a request of log Z alone does not.
        engine.sample(request, DrawResults(positions, log_prob, scored, statistics, None, None, None))
    except _THROWN as thrown:
        raise _explain(thrown, b, 1) from thrown
    half = factor * (np.nan_to_num(statistics[0]) + SCALE)
    ends = np.stack([statistics[1], statistics[1] - half, statistics[1] + half])
    return _estimate(ends, 0, single, bounded=True, guarantee="calibrated")


def find_best(engine: Engine, ids: IdMap, request: Request, shape: Shape, *, stated: bool) -> TopK:
    """Return the best items of a request; stated: whether a recall is stated where they are not proven."""
    b, k, single = shape
    positions, scores, proven = _empty(b, k, np.int64), _empty(b, k, np.float32), _empty(b, k, np.bool_)
    statistics, scored = np.empty((2, b)), np.empty(b, np.int64)
    try:
        engine.top_k(request, BestResults(positions, scores, proven, statistics, scored))
        names = ids.at(positions)
    except _THROWN as thrown:
        raise _explain(thrown, b, k) from thrown
    gap, missed = statistics
    recall = 1.0 - missed
    if not stated:
        recall[missed > 0.0] = np.nan
    if single:
        return TopK(names[0], scores[0], proven[0], gap[0], scored[0], recall=recall[0])
    return TopK(names, scores, proven, gap, scored, recall=recall)


def measure_masses(engine: Engine, request: Request, b: int, clusters: int) -> tuple[Doubles, Doubles, Integers]:
    """Return log masses (b, k), stated errors and items scored (b,) of a request."""
    masses, error, scored = _empty(b, clusters, np.float64), np.empty(b), np.empty(b, np.int64)
    try:
        engine.masses(request, masses, error, scored)
    except _THROWN as thrown:
        raise _explain(thrown, b, clusters) from thrown
    return masses, error, scored


def spread_positions(positions: Integers, b: int, single: bool) -> Integers:
    """Return positions (b, m), C-contiguous, from what the caller gave for b queries."""
    if single and positions.ndim <= 1:
        return np.ascontiguousarray(positions.reshape(1, -1))
    if positions.ndim == 1:
        return np.ascontiguousarray(np.broadcast_to(positions, (b, len(positions))))
    if positions.ndim == 2 and len(positions) == b:
        return np.ascontiguousarray(positions)
    raise InputError(
        f"ids have shape {positions.shape} for {b} queries; expected (m,) for all of them, or ({b}, m), "
        "one row per query."
    )


def _estimate(values: Doubles, row: int, single: bool, bounded: bool, guarantee: str = "proven") -> Estimate:
    """The record of three rows of values: log Z, its lower bound, its upper bound (or what is expected)."""
    low, high = row + 1, row + 2
    if not bounded:
        # Of an estimate the engine writes how far off it expects to be, as the distance of both "bounds".
        if single:
            return Estimate(values[row, 0], error=values[high, 0] - values[row, 0])
        return Estimate(values[row], error=values[high] - values[row])
    if single:
        return Estimate(values[row, 0], values[low, 0], values[high, 0], guarantee)
    return Estimate(values[row], values[low], values[high], guarantee)


def _empty(b: int, m: int, dtype: type[Any]) -> NDArray[Any]:
    """An array (b, m) for results; InputError where it would not fit into memory."""
    try:
        return np.empty((b, m), dtype)
    except (MemoryError, ValueError) as error:
        raise too_many(b, m) from error


def _explain(error: Exception, b: int, m: int) -> SoftindexError:
    """What the engine threw, as an error of this library."""
    if isinstance(error, MemoryError):
        return too_many(b, m)
    # Larger arrays of a mapped index are not checked when it is loaded.
    advice = "run softindex verify on it, restore a copy or build it again"
    return CorruptIndexError(f"the index is damaged ({error}); {advice}.")
