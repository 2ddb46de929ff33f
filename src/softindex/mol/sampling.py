"""Draws from the softmax of a learned similarity: exactly, by rejection, or from candidates with a proven error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from softindex.kernels import hash_bytes
from softindex.mol.engine import Batch, Engine, Lists
from softindex.records import Doubles, Floats, Integers

__all__ = ["LAWS", "Drawn", "draw_among", "draw_exactly"]

LAWS = ("exact", "candidates")
UNHEARD = 1e-9
"""Adding up the weights, and the random number itself, cost more total variation than that."""
PATIENCE = 8
"""Proposals are made until they cost as much as scoring this part of all items; then all are scored."""


class Drawn(NamedTuple):
    """Draws of b queries."""

    positions: Integers
    """(b, n)"""
    scores: Doubles
    """(b, n)"""
    error: Doubles
    """(b,)"""
    scored: Integers
    """(b,)"""


def draw_exactly(engine: Engine, batch: Batch, n: int, temperature: float, seed: int, threads: int) -> Drawn:
    """Draw n items of each query from the softmax of all scores, up to the rounding of float64.

    No score exceeds the item's largest logit m, so exp(score / t) <= exp(m / t): an item is proposed in proportion to
    exp(m / t) and kept with probability exp((score - m) / t), with m raised by what float32 may have taken from it and
    the score in float64.  That is the mixture of the softmaxes of the pairs with their sum at an item replaced by its
    largest term, and keeps up to P times more of what it proposes.
    """
    drawn, generators = _room(len(batch), n), _generators(batch, seed)
    drawn.error[:] = _rounding(engine.precise_errors(batch) / temperature)
    for q, one, largest in _largest_of_each(engine, batch, threads):
        positions, scores, spent = _reject(engine, one, largest, n, temperature, generators[q], threads)
        drawn.positions[q], drawn.scores[q], drawn.scored[q] = positions, scores, spent
    return drawn


def _generators(batch: Batch, seed: int) -> list[np.random.Generator]:
    """One for each query, by its content and not by its place; copies of a query get different ones."""
    seen: Counter[int] = Counter()
    made = []
    for q in range(len(batch)):
        gates = b"" if batch.side.gates is None else batch.side.gates[q].tobytes()
        name = hash_bytes(batch.side.components[q].tobytes() + gates)
        made.append(np.random.default_rng([seed, name, seen[name]]))
        seen[name] += 1
    return made


def _largest_of_each(engine: Engine, batch: Batch, threads: int) -> Iterator[tuple[int, Batch, Floats]]:
    """Each query by itself with the largest logits (n,) of all items, which are computed for several at once."""
    for rows, part in engine.groups(batch):
        found = engine.largest(part, 0, threads)[0]
        for row, largest in zip(rows.tolist(), found, strict=True):
            yield row, batch.take(np.array([row])), largest


def _reject(
    engine: Engine,
    one: Batch,
    largest: Floats,
    n: int,
    temperature: float,
    rng: np.random.Generator,
    threads: int,
) -> tuple[Integers, Doubles, int]:
    running, ceiling = _running_weights(largest, temperature), largest + one.single.logit[0]
    kept: list[Integers] = []
    kept_scores: list[Doubles] = []
    found = spent = proposed = 0
    while found < n:
        rate = (found + 1) / (proposed + 1) if proposed else 0.5
        wanted = min(int(1.2 * (n - found) / rate) + 16, max(1024, 4 * n))
        if spent + wanted > engine.n / PATIENCE + 1024:
            every = np.flatnonzero(np.isfinite(largest))
            scores = engine.score_precisely(one, Lists.of([every]), threads)[0]
            chosen = _choose(_running_weights(scores, temperature), n - found, rng)
            kept, kept_scores = [*kept, every[chosen]], [*kept_scores, scores[chosen]]
            spent += len(every)
            break
        proposals = _choose(running, wanted, rng)
        distinct, back = np.unique(proposals, return_inverse=True)
        scores = engine.score_precisely(one, Lists.of([distinct]), threads)[0][back]
        chance = np.exp(np.minimum(0.0, (scores - ceiling[proposals]) / temperature))
        good = np.flatnonzero(rng.random(wanted) < chance)[: n - found]
        kept.append(proposals[good])
        kept_scores.append(scores[good])
        found, spent, proposed = found + len(good), spent + len(distinct), proposed + wanted
    return np.concatenate(kept), np.concatenate(kept_scores), spent


def draw_among(
    engine: Engine,
    batch: Batch,
    n: int,
    temperature: float,
    candidates: int,
    seed: int,
    threads: int,
) -> Drawn:
    """Draw from the softmax of the best candidates by the average.

    The total variation to the softmax of all is the mass of the others, O / (C + O).  Their largest logits bound O from
    above; the candidates' scores, in float64, give C.
    """
    drawn, generators = _room(len(batch), n), _generators(batch, seed)
    off = engine.precise_errors(batch) / temperature
    rounding = _rounding(off)
    for q, one, logits in _largest_of_each(engine, batch, threads):
        listed = engine.best_average(one, candidates, threads)[0]
        scores = engine.score_precisely(one, Lists.of([listed]), threads)[0]
        chosen = _choose(_running_weights(scores, temperature), n, generators[q])
        largest = logits.astype(np.float64)
        largest[listed] = -np.inf
        # Both sides of the comparison with what they may be off by.
        inside = _log_sum(scores / temperature) - off[q]
        outside = _log_sum(largest / temperature) + one.single.logit[0] / temperature
        drawn.positions[q], drawn.scores[q], drawn.scored[q] = listed[chosen], scores[chosen], len(listed)
        missed = np.exp(outside - np.logaddexp(inside, outside)) * (1 + 1e-9)
        drawn.error[q] = min(1.0, missed + rounding[q])
    return drawn


def _rounding(off: Doubles) -> Doubles:
    """(b,) total variation that logits off by so much may cause, as weights are off by factors within exp(+-off)."""
    found = np.tanh(off)
    return np.where(found < UNHEARD, 0.0, found)


def _room(b: int, n: int) -> Drawn:
    return Drawn(np.empty((b, n), np.int64), np.empty((b, n)), np.zeros(b), np.empty(b, np.int64))


def _running_weights(scores: Floats | Doubles, temperature: float) -> Doubles:
    wide = np.asarray(scores, np.float64)
    return np.cumsum(np.exp((wide - wide.max()) / temperature))


def _choose(running: Doubles, n: int, rng: np.random.Generator) -> Integers:
    """(n,) places in proportion to the weights of which these are the running sums."""
    # An excluded item has no weight: searching from the right never ends on it.
    found = np.searchsorted(running, rng.random(n) * running[-1], side="right")
    return np.asarray(np.minimum(found, np.searchsorted(running, running[-1], side="left")))


def _log_sum(values: Doubles) -> float:
    top = values.max()
    return float(top + np.log(np.exp(values - top).sum())) if np.isfinite(top) else -np.inf
