"""Runs requests and puts the engine's results into records: allocates arrays and explains what the engine threw."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softindex.errors import CorruptIndexError, InputError, SoftindexError
from softindex.ids import IdMap
from softindex.kernels import BestResults, DrawResults, Engine, Request
from softindex.laws import PROVEN_METHODS, TREE_METHODS
from softindex.records import Doubles, Draws, Estimate, Integers, TopK
from softindex.restrictions import Restriction

__all__ = [
    "Shape",
    "draw",
    "estimate_log_partition",
    "find_best",
    "log_probabilities",
    "measure_masses",
    "spread_positions",
]

_THROWN = (MemoryError, RuntimeError, IndexError)


class Shape(NamedTuple):
    """Rows and columns of a result; `single` where one query without a row axis was given."""

    b: int
    m: int
    single: bool


def draw(
    engine: Engine, ids: IdMap, request: Request, shape: Shape, *, method: str, seed: int, part: Restriction | None
) -> Draws:
    """Return the draws of a request; part: what it is restricted to."""
    b, n, single = shape
    positions, log_prob = _empty(b, n, np.int64), _empty(b, n, np.float64)
    error, scored, log_z = np.empty(b), np.empty(b, np.int64), np.empty((3, b))
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None
    try:
        if part is not None:
            left = np.empty(b, np.int64)
            engine.sample(request, DrawResults(positions, log_prob, error, scored, log_z, None, None, left))
            part.check_nucleus(left, n)
        elif method == "certified":
            low, high = _empty(b, n, np.float64), _empty(b, n, np.float64)
            engine.sample(request, DrawResults(positions, log_prob, error, scored, log_z, low, high))
        else:
            engine.sample(request, DrawResults(positions, log_prob, error, scored, log_z))
        names = ids.at(positions)
    except _THROWN as thrown:
        raise _explain(thrown, b, n) from thrown
    log_partition = None if method in TREE_METHODS else _estimate(log_z, single, method in PROVEN_METHODS)
    if not single:
        return Draws(names, log_prob, error, scored, method, seed, log_partition, low, high)
    if low is not None and high is not None:
        low, high = low[0], high[0]
    return Draws(names[0], log_prob[0], error[0], scored[0], method, seed, log_partition, low, high)


def log_probabilities(engine: Engine, request: Request, positions: Integers) -> Doubles:
    """Return log-probabilities (b, m) of the items at positions (b, m)."""
    b, m = positions.shape
    result = _empty(b, m, np.float64)
    try:
        engine.log_prob(request, positions, result)
    except _THROWN as thrown:
        raise _explain(thrown, b, m) from thrown
    return result


def estimate_log_partition(engine: Engine, request: Request, shape: Shape, *, bounded: bool) -> Estimate:
    """Return log Z of a request's queries, with bounds where the engine computes some."""
    values = np.empty((3, shape.b))
    try:
        engine.log_partition(request, values, np.empty(shape.b, np.int64))
    except _THROWN as thrown:
        raise _explain(thrown, shape.b, 1) from thrown
    return _estimate(values, shape.single, bounded)


def find_best(engine: Engine, ids: IdMap, request: Request, shape: Shape) -> TopK:
    """Return the best items of a request."""
    b, k, single = shape
    positions, scores, proven = _empty(b, k, np.int64), _empty(b, k, np.float32), _empty(b, k, np.bool_)
    gap, scored = np.empty(b), np.empty(b, np.int64)
    try:
        engine.top_k(request, BestResults(positions, scores, proven, gap, scored))
        names = ids.at(positions)
    except _THROWN as thrown:
        raise _explain(thrown, b, k) from thrown
    if single:
        return TopK(names[0], scores[0], proven[0], gap[0], scored[0])
    return TopK(names, scores, proven, gap, scored)


def measure_masses(engine: Engine, request: Request, b: int, clusters: int) -> tuple[Doubles, Doubles, Integers]:
    """Return log masses (b, k), stated errors and items scored (b,) of a request."""
    masses, error, scored = _empty(b, clusters, np.float64), np.empty(b), np.empty(b, np.int64)
    try:
        engine.masses(request, masses, error, scored)
    except _THROWN as thrown:
        raise _explain(thrown, b, clusters) from thrown
    return masses, error, scored


def spread_positions(positions: Integers, shape: Shape) -> Integers:
    """Return positions (b, m), C-contiguous, from what the caller gave for b queries."""
    if shape.single and positions.ndim <= 1:
        return np.ascontiguousarray(positions.reshape(1, -1))
    if positions.ndim == 1:
        return np.ascontiguousarray(np.broadcast_to(positions, (shape.b, len(positions))))
    if positions.ndim == 2 and len(positions) == shape.b:
        return np.ascontiguousarray(positions)
    raise InputError(
        f"ids have shape {positions.shape} for {shape.b} queries; expected (m,) for all of them, or ({shape.b}, m), "
        "one row per query."
    )


def _estimate(values: Doubles, single: bool, bounded: bool) -> Estimate:
    """The record of values (3, b): log Z, lower bound, upper bound."""
    if single:
        return Estimate(values[0, 0], values[1, 0], values[2, 0]) if bounded else Estimate(values[0, 0])
    return Estimate(values[0], values[1], values[2]) if bounded else Estimate(values[0])


def _empty(b: int, m: int, dtype: type[Any]) -> NDArray[Any]:
    """An array (b, m) for results; InputError where it would not fit into memory."""
    try:
        return np.empty((b, m), dtype)
    except (MemoryError, ValueError) as error:
        raise _too_many(b, m) from error


def _too_many(b: int, m: int) -> InputError:
    return InputError(f"{m} results for each of {b} queries do not fit into memory; ask for fewer.")


def _explain(error: Exception, b: int, m: int) -> SoftindexError:
    """What the engine threw, as an error of this library."""
    if isinstance(error, MemoryError):
        return _too_many(b, m)
    # Larger arrays of a mapped index are not checked when it is loaded.
    advice = "run softindex verify on it, restore a copy or build it again"
    return CorruptIndexError(f"the index is damaged ({error}); {advice}.")
