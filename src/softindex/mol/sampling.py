"""Draws from the softmax of a learned similarity: exact by rejection, or from candidates with a proven error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from softindex.mol.scorer import PositionLists, QueryBatch, Scorer, not_numbers
from softindex.records import Doubles, Estimate, Floats, Integers
from softindex.rejection import choose, draw
from softindex.streams import generators
from softindex.temperatures import temperature_of

__all__ = ["SAMPLE_METHODS", "DrawOptions", "DrawnPositions", "draw_exactly", "draw_from_candidates"]

SAMPLE_METHODS = ("exact", "candidates")
NEGLIGIBLE = 1e-9
"""A smaller total variation counts as 0: adding up the weights, and the random numbers themselves, cost more."""
PATIENCE = 8
"""Proposals may score one item in this many, and `MORE` on top; then all items are scored."""
MORE = 1024
UNIT = 2.0**-53


class DrawOptions(NamedTuple):
    """Options of one call, checked."""

    n: int
    temperature: float | Doubles
    """Of all queries, or (b,)."""
    seed: int
    threads: int


class DrawnPositions(NamedTuple):
    """Draws for b queries."""

    positions: Integers
    """(b, n)"""
    scores: Doubles
    """(b, n)"""
    error: Doubles
    """(b,) upper bound on the total variation."""
    scored: Integers
    """(b,) number of items whose score was computed."""
    log_prob: Doubles
    """(b, n); NaN where it is not known."""
    log_partition: Estimate | None = None
    """(b,); None where it is not known."""


def draw_exactly(scorer: Scorer, batch: QueryBatch, options: DrawOptions) -> DrawnPositions:
    """Draw from the softmax of all scores, up to the rounding of float64.

    No score exceeds the item's largest logit, so the largest logits, raised by their rounding errors, are the bounds
    for rejection.  Proposals come from a mixture of one softmax per pair of components, with the sum over the pairs of
    an item replaced by its largest term.  That accepts up to P times more proposals than the mixture itself.
    """
    drawn, streams = _empty(len(batch), options.n), _streams(batch, options.seed)
    drawn.error[:] = _rounding_error(batch.precise().error / options.temperature)
    scores = np.empty(scorer.n)
    for row, query, largest in _largest_logits(scorer, batch, options.threads):
        temperature = temperature_of(options.temperature, row)

        def score(positions: Integers, query: QueryBatch = query, temperature: float = temperature) -> Doubles:
            lists = PositionLists.of([positions])
            scores[positions] = scorer.score_precisely(query, lists, options.threads)[0]
            return np.asarray(scores[positions] / temperature)

        upper = (largest + query.errors.logit[0]) / temperature
        accepted = draw(upper, score, options.n, streams[row], budget=scorer.n // PATIENCE + MORE)
        drawn.positions[row], drawn.scores[row] = accepted.positions, scores[accepted.positions]
        drawn.scored[row] = accepted.scored
    return drawn


def draw_from_candidates(scorer: Scorer, batch: QueryBatch, candidates: int, options: DrawOptions) -> DrawnPositions:
    """Draw from the softmax of the best candidates by the average.

    The total variation to the softmax of all items is the mass of the other items, O / (C + O).  Their largest logits
    bound O from above; the candidates' scores in float64 give C.  The same two numbers bound log Z = log(C + O).
    """
    b = len(batch)
    drawn, streams = _empty(b, options.n), _streams(batch, options.seed)
    log_prob, inside, low, high = np.empty((b, options.n)), np.empty(b), np.empty(b), np.empty(b)
    score_error = batch.precise().error / options.temperature
    rounding = _rounding_error(score_error)
    for row, query, largest in _largest_logits(scorer, batch, options.threads):
        temperature = temperature_of(options.temperature, row)
        listed = scorer.best_average(query, candidates, options.threads)[0]
        scores = scorer.score_precisely(query, PositionLists.of([listed]), options.threads)[0]
        logits = scores / temperature
        chosen = choose(np.exp((scores - scores.max()) / temperature), options.n, streams[row])
        drawn.positions[row], drawn.scores[row], drawn.scored[row] = listed[chosen], scores[chosen], len(listed)
        others = largest.astype(np.float64)
        others[listed] = -np.inf
        inside[row] = _log_sum(logits)
        outside = _log_sum(others / temperature) + query.errors.logit[0] / temperature
        # Compare a lower bound on the candidates' mass with an upper bound on the mass of the others.
        certain = inside[row] - score_error[row]
        missed = np.exp(outside - np.logaddexp(certain, outside)) * (1 + 1e-9)
        drawn.error[row] = min(1.0, missed + rounding[row])
        log_prob[row] = logits[chosen] - inside[row]
        slack = _sum_slack(scorer.n, query.errors.ceiling[0] / temperature)
        low[row] = certain - slack
        high[row] = np.logaddexp(inside[row] + score_error[row], outside) + slack
    return drawn._replace(log_prob=log_prob, log_partition=Estimate(inside, low, high))


def _streams(batch: QueryBatch, seed: int) -> list[np.random.Generator]:
    """One generator per query, named by its components and gates."""
    components, gates = batch.side.components, batch.side.gates
    contents = (
        components[row].tobytes() + (b"" if gates is None else gates[row].tobytes()) for row in range(len(batch))
    )
    return generators(contents, seed)


def _largest_logits(scorer: Scorer, batch: QueryBatch, threads: int) -> Iterator[tuple[int, QueryBatch, Floats]]:
    """Row number, query and largest logits (n,) of each query; logits are computed for several queries at once."""
    for rows, group in scorer.groups(batch):
        logits = scorer.largest(group, 0, threads)[0]
        for row, largest in zip(rows.tolist(), logits, strict=True):
            if np.count_nonzero(np.isfinite(largest)) != batch.available[row]:
                raise not_numbers("logits")
            yield row, batch.take(np.array([row])), largest


def _rounding_error(score_error: Doubles) -> Doubles:
    """(b,) total variation from logits with errors of this size: weights are off by factors within exp(+-error)."""
    total_variation = np.tanh(score_error)
    return np.where(total_variation < NEGLIGIBLE, 0.0, total_variation)


def _empty(b: int, n: int) -> DrawnPositions:
    unknown = np.full((b, n), np.nan)
    return DrawnPositions(np.empty((b, n), np.int64), np.empty((b, n)), np.zeros(b), np.empty(b, np.int64), unknown)


def _log_sum(values: Doubles) -> float:
    top = values.max()
    return float(top + np.log(np.exp(values - top).sum())) if np.isfinite(top) else -np.inf


def _sum_slack(n: int, ceiling: float) -> float:
    """Upper bound on the error of the log of a sum over at most n items, in float64.

    Dividing by the temperature and adding the largest logit again each round a number of at most the ceiling.  Each
    exponential, with the rounding of its argument, and each addition cost a few units of the largest term.
    """
    return UNIT * (8 * n + 16 * ceiling + 64)
