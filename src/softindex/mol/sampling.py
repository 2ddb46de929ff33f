"""Draws from the softmax of a learned similarity: exact by rejection, or from candidates with a proven error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from softindex.mol.scorer import PositionLists, QueryBatch, Scorer, not_numbers
from softindex.records import Doubles, Estimate, Floats, Integers
from softindex.rejection import choose, choose_slate, draw, draw_slate
from softindex.streams import generators
from softindex.temperatures import temperature_of

__all__ = [
    "SAMPLE_METHODS",
    "DrawOptions",
    "DrawnPositions",
    "draw_exactly",
    "draw_from_candidates",
    "log_probabilities",
]

SAMPLE_METHODS = ("exact", "candidates")
NEGLIGIBLE = 1e-9
"""A smaller total variation counts as 0: the sum of the weights and the random numbers have larger errors."""
PATIENCE = 8
"""Rejection may score one item in this many, and `MORE` on top; after that, all items are scored."""
MORE = 1024
UNIT = 2.0**-53


class DrawOptions(NamedTuple):
    """Options of one call, checked."""

    n: int
    temperature: float | Doubles
    """Of all queries, or (b,)."""
    seed: int
    threads: int
    replace: bool = True


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
    an item replaced by its largest term.  This accepts up to P times as many proposals as the mixture itself would.
    """
    drawn, streams = _empty(len(batch), options.n), _streams(batch, options.seed)
    # Each step of a slate has the error of one draw.
    steps = 1 if options.replace else options.n
    drawn.error[:] = np.minimum(1.0, steps * _rounding_error(batch.precise().error / options.temperature))
    scores = np.empty(scorer.n)
    for row, query, largest in _largest_logits(scorer, batch, options.threads):
        temperature = temperature_of(options.temperature, row)

        def score(positions: Integers, query: QueryBatch = query, temperature: float = temperature) -> Doubles:
            lists = PositionLists.of([positions])
            scores[positions] = scorer.score_precisely(query, lists, options.threads)[0]
            return np.asarray(scores[positions] / temperature)

        upper = (largest + query.errors.logit[0]) / temperature
        draw_all = draw if options.replace else draw_slate
        accepted = draw_all(upper, score, options.n, streams[row], budget=scorer.n // PATIENCE + MORE)
        drawn.positions[row], drawn.scores[row] = accepted.positions, scores[accepted.positions]
        drawn.scored[row] = accepted.scored
    return drawn


def draw_from_candidates(scorer: Scorer, batch: QueryBatch, candidates: int, options: DrawOptions) -> DrawnPositions:
    """Draw from the softmax of the best candidates: by clusters, or by the average where there are none.

    The total variation from the softmax of all items is the mass of the other items, O / (C + O).  Their largest logits
    bound O from above; the candidates' scores in float64 give C.  The same two numbers bound log Z = log(C + O).
    """
    b = len(batch)
    drawn, streams = _empty(b, options.n), _streams(batch, options.seed)
    log_prob, inside, low, high = np.empty((b, options.n)), np.empty(b), np.empty(b), np.empty(b)
    score_error = batch.precise().error / options.temperature
    rounding = _rounding_error(score_error)
    for row, query, largest in _largest_logits(scorer, batch, options.threads):
        temperature = temperature_of(options.temperature, row)
        listed = scorer.best_candidates(query, candidates, options.threads)[0]
        scores = scorer.score_precisely(query, PositionLists.of([listed]), options.threads)[0]
        logits = scores / temperature
        chosen, log_prob[row], left = _choose(logits, options, streams[row])
        drawn.positions[row], drawn.scores[row], drawn.scored[row] = listed[chosen], scores[chosen], len(listed)
        others = largest.astype(np.float64)
        others[listed] = -np.inf
        inside[row] = _log_sum(logits)
        outside = _log_sum(others / temperature) + query.errors.logit[0] / temperature
        # Compare a lower bound on the candidates' mass with an upper bound on the mass of the others.
        certain = inside[row] - score_error[row]
        missed = np.exp(outside - np.logaddexp(left - score_error[row], outside)) * (1 + 1e-9) + rounding[row]
        drawn.error[row] = min(1.0, float(missed.sum()))
        slack = _sum_slack(scorer.n, query.errors.ceiling[0] / temperature)
        low[row] = certain - slack
        high[row] = np.logaddexp(inside[row] + score_error[row], outside) + slack
    return drawn._replace(log_prob=log_prob, log_partition=Estimate(inside, low, high))


def _choose(logits: Doubles, options: DrawOptions, stream: np.random.Generator) -> tuple[Integers, Doubles, Doubles]:
    """Draws (n,) from the softmax of logits (m,), their log_prob, and log of the mass that each step draws from.

    With replacement all steps are the same, and there is one such mass.
    """
    if options.replace:
        chosen, total = choose(np.exp(logits - logits.max()), options.n, stream), np.array([_log_sum(logits)])
        return chosen, logits[chosen] - total, total
    chosen = choose_slate(logits, options.n, stream)
    left = log_masses_left(logits, chosen)
    return chosen, logits[chosen] - left, left


def log_masses_left(logits: Doubles, slate: Integers) -> Doubles:
    """(n,) log of the mass that each step of a slate (n,) is drawn from: of logits (m,), without the steps before."""
    others = np.array(logits)
    others[slate] = -np.inf
    # From the last step to the first: subtracting what is gone would cancel.
    masses = np.logaddexp.accumulate(np.concatenate([[_log_sum(others)], logits[slate][::-1]]))
    return np.asarray(masses[:0:-1])


def log_probabilities(
    scorer: Scorer, batch: QueryBatch, rows: Integers, options: DrawOptions, candidates: int | None
) -> Doubles:
    """(b, m) log-probabilities of positions (b, m), or of the steps of slates; -1 is no position.

    candidates: as for `draw_from_candidates`; None for the softmax of all items, each of which is scored in float64.
    """
    result = np.full(rows.shape, -np.inf)
    for row in range(len(batch)):
        query, every = batch.take(np.array([row])), np.full(scorer.n, -np.inf)
        if candidates is None:
            excluded = query.excluded.positions
            listed = np.setdiff1d(np.arange(scorer.n), excluded) if len(excluded) else np.arange(scorer.n)
        else:
            listed = scorer.best_candidates(query, candidates, options.threads)[0]
        scores = scorer.score_precisely(query, PositionLists.of([listed]), options.threads)[0]
        every[listed] = scores / temperature_of(options.temperature, row)
        wanted = rows[row]
        possible = (wanted >= 0) & np.isfinite(every[np.maximum(wanted, 0)])
        if options.replace:
            result[row, possible] = every[wanted[possible]] - _log_sum(every[listed])
            continue
        # A repeated id cannot be drawn again, and takes nothing away.
        steps = np.flatnonzero(possible)
        steps = steps[np.sort(np.unique(wanted[steps], return_index=True)[1])]
        if len(steps):
            result[row, steps] = every[wanted[steps]] - log_masses_left(every, wanted[steps])
    return result


def _streams(batch: QueryBatch, seed: int) -> list[np.random.Generator]:
    """One generator per query, keyed by its components and gates."""
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
