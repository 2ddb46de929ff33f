"""How probable an item is at a position of a slate, whatever comes before it: by Monte Carlo."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softindex.arguments import check_count
from softindex.decisions.asking import ask_parts, unlogged
from softindex.errors import InputError
from softindex.records import Doubles, Floats
from softindex.temperatures import Temperature, check_each_temperature, temperature_of

__all__ = ["Marginals", "position_marginals", "slot_marginals"]

BLOCK = 8192
"""Slates in one call."""


class Marginals(NamedTuple):
    """Estimates and their standard errors."""

    probability: Doubles
    standard_error: Doubles


def position_marginals(
    index: Any, query: Any, ids: Any, n: int, *, temperature: float, draws: int = 1000, seed: int = 0, **options: Any
) -> Marginals:
    """Estimate the probability of every item at every position of a slate of n.

    What precedes a position is drawn; the probability of each item after it is computed, not counted.  The first
    position is exact, and its standard error 0.

    Args:
        index: An `Index`, snapshot, subset or `Client`.
        query: (d,)
        ids: (m,)
        n: Items in a slate.
        temperature: As for `sample`, like all further options but `replace`.
        draws: Number of slates.
        seed: Of them.

    Returns:
        probability and standard_error, (n, m) each.
    """
    vector, items = np.asarray(query, np.float32), np.asarray(ids)
    if vector.ndim != 1 or items.ndim != 1:
        raise InputError(f"the query has shape {vector.shape} and ids {items.shape}; expected (d,) and (m,).")
    index = _checked(index, options)
    before = _drawn_before(index, vector, n, draws, seed, {"temperature": temperature, **options})
    columns = [_moments(index, vector, before[:, :j], items, temperature, options) for j in range(n)]
    return Marginals(np.stack([mean for mean, _ in columns]), np.stack([error for _, error in columns]))


def slot_marginals(
    index: Any, queries: Any, slates: Any, *, temperature: Temperature, draws: int = 100, seed: int = 0, **options: Any
) -> Marginals:
    """Estimate the probability of each item of slates at the position where it is, for the form "independent".

    Args:
        index: As for `position_marginals`, like `draws`, `seed` and all further options.
        queries: (b, d)
        slates: (b, n) ids.
        temperature: One for all queries, or (b,).

    Returns:
        probability and standard_error, (b, n) each.  `np.log(probability)` is what `Scored` takes.
    """
    vectors, shown = np.asarray(queries, np.float32), np.asarray(slates)
    if vectors.ndim != 2 or shown.ndim != 2 or len(vectors) != len(shown):
        raise InputError(f"queries have shape {vectors.shape} and slates {shown.shape}; expected (b, d) and (b, n).")
    index, each = _checked(index, options), check_each_temperature(temperature, len(vectors))
    mean, error = np.empty(shown.shape), np.empty(shown.shape)
    for row, vector in enumerate(vectors):
        t, n = temperature_of(each, row), shown.shape[1]
        before = _drawn_before(index, vector, n, draws, seed, {"temperature": t, **options})
        for j in range(n):
            found = _moments(index, vector, before[:, :j], shown[row, j : j + 1], t, options)
            mean[row, j], error[row, j] = found[0][0], found[1][0]
    return Marginals(mean, error)


def _checked(index: Any, options: dict[str, Any]) -> Any:
    if "replace" in options:
        raise InputError("slates are drawn without replacement; leave replace out.")
    return unlogged(index)


def _drawn_before(index: Any, vector: Floats, n: int, draws: int, seed: int, options: dict[str, Any]) -> Any:
    """(draws, n - 1) the items before the last position of as many slates."""
    count = check_count(draws, "draws")
    if check_count(n, "n") == 1:
        return np.empty((count, 0), np.int64)
    copies = np.broadcast_to(vector, (count, len(vector)))
    found = []
    # Copies of a query have streams of their own within one call only.
    for number, (part, own) in enumerate(ask_parts(index, {"replace": False, **options}, copies)):
        found.append(index.sample(part, n - 1, seed=seed + number, **own).ids)
    return np.concatenate(found)


def _moments(
    index: Any, vector: Floats, before: Any, items: Any, temperature: float, options: dict[str, Any]
) -> tuple[Doubles, Doubles]:
    """(m,) mean and standard error of the probability of each item after what was drawn before it."""
    prefixes = before if before.shape[1] else before[:1]
    slates = np.empty((len(prefixes), len(items), before.shape[1] + 1), items.dtype)
    slates[:, :, :-1], slates[:, :, -1] = prefixes[:, None], items
    flat, last = slates.reshape(-1, slates.shape[2]), np.empty(len(prefixes) * len(items))
    for begin in range(0, len(flat), BLOCK):
        part = flat[begin : begin + BLOCK]
        copies = np.broadcast_to(vector, (len(part), len(vector)))
        asked = {"temperature": temperature, "replace": False, "missing": "-inf", **options}
        steps = np.concatenate([index.log_prob(*rows, **own) for *rows, own in ask_parts(index, asked, copies, part)])
        last[begin : begin + BLOCK] = steps[:, -1]
    chances = np.exp(last).reshape(len(prefixes), len(items))
    # Before the first position there is nothing to average over.
    error = np.zeros(len(items)) if len(chances) == 1 else chances.std(axis=0, ddof=1) / np.sqrt(len(chances))
    return chances.mean(axis=0), error
