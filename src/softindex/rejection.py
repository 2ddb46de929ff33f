"""Exact draws from a softmax by rejection under upper bounds, so that most items are never scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from softindex.records import Doubles, Integers

__all__ = ["Accepted", "choose", "choose_slate", "draw", "draw_slate"]

MORE = 16
"""Extra proposals per round: scoring a few more items costs less than another round."""
FARTHEST = 30.0
"""Once the largest bound has fallen by more, weights are computed again: at 700 they would all be zero."""
EXCESS = 0.5
"""Bounds are lowered if that removes this share of the proposals: otherwise adding up all weights takes longer."""
MOST_ROUNDS = 100
"""Half of the proposals of scored items are accepted, so only wrong bounds or very poor ones need as many rounds."""
SLATE_ROUNDS = 4
"""Rounds of draws for a slate before all items are scored: a few items that hold most of the mass are gone by then."""
LOWERING = 256
"""Lowering the bounds of this many items takes about as long as scoring one of them."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Draws from the softmax of the logits."""

    positions: Integers
    """(n,)"""
    logits: Doubles
    """(n,) as `score` returned them."""
    scored: int
    """Number of different items that were scored."""


def draw(
    upper: Doubles,
    score: Callable[[Integers], Doubles],
    n: int,
    rng: np.random.Generator,
    *,
    budget: int,
    known: Integers | None = None,
    weights: tuple[float, Doubles] | None = None,
) -> Accepted:
    """Draw n positions, each with probability proportional to exp(logit).

    A position is proposed in proportion to its weight, exp(upper bound), and accepted with probability
    exp(logit) / weight.  That is exact with any weights that are large enough, so they stay as they are from round to
    round.  Only if scored items take up most of the proposals, their logits become their bounds, and they are never
    rejected again.  Once proposals have used up the budget or the rounds, every item is scored and the missing draws
    come from the logits themselves.  All of this is decided before a round of proposals: dropping proposals that have
    been seen would change the distribution.

    Args:
        upper: (m,) no logit exceeds its bound, rounding included; -inf for an item that must not be drawn.
        score: Gives the logits of positions (increasing, each once).  Called at most once per position.
        n: Number of draws.
        rng: Source of the draws.
        budget: Number of items that proposals may score before all are scored.
        known: Positions whose bound is the logit itself; they are not scored.
        weights: A peak and (m,) weights of at least exp(upper - peak), where the caller has them.  They are changed;
            those of known positions are computed again.
    """
    state = _State(upper, score, known, weights)
    positions: list[Integers] = []
    accepted = proposed = rounds = 0
    while accepted < n:
        rounds += 1
        if state.is_complete() or rounds > MOST_ROUNDS:
            positions.append(state.choose_among_all(n - accepted, rng))
            break
        rate = (accepted + 1) / (proposed + 1) if proposed else 1.0
        wanted = min(int(1.2 * (n - accepted) / rate) + MORE, max(1024, 4 * n))
        affordable = min(wanted, budget - state.spent)
        # Each round takes all it wants or half of the budget, so that there are never many small ones.
        if affordable < wanted and 2 * affordable < budget:
            positions.append(state.choose_among_all(n - accepted, rng))
            break
        good = state.propose(affordable, rng)[: n - accepted]
        positions.append(good)
        accepted, proposed = accepted + len(good), proposed + affordable
    drawn = np.concatenate(positions)
    return Accepted(drawn, state.logits[drawn], state.scored)


def draw_slate(
    upper: Doubles, score: Callable[[Integers], Doubles], n: int, rng: np.random.Generator, *, budget: int
) -> Accepted:
    """Draw n different positions one after the other, each in proportion to exp(logit) among those that are left.

    Draws with replacement are such a slate once repeats are left out.  So a round draws as many as are missing, and the
    next one does without the items that the slate has.  If a few rounds are not enough, every item is scored.

    Args:
        upper: As for `draw`, like `score`, `rng` and `budget`.
        n: Number of positions; at least as many must have a finite bound.
    """
    bounds, logits, known = np.array(upper, np.float64), np.empty(len(upper)), np.zeros(len(upper), bool)

    def resolve(positions: Integers) -> Doubles:
        logits[positions], known[positions] = score(positions), True
        return np.asarray(logits[positions])

    slate: Integers = np.empty(0, np.int64)
    for _ in range(SLATE_ROUNDS):
        given = np.flatnonzero(known & np.isfinite(bounds))
        bounds[given] = logits[given]
        found = draw(bounds, resolve, n - len(slate), rng, budget=budget, known=given).positions
        fresh = found[np.sort(np.unique(found, return_index=True)[1])]
        slate, bounds[fresh] = np.concatenate([slate, fresh]), -np.inf
        if len(slate) == n:
            return Accepted(slate, logits[slate], int(known.sum()))
    left = np.flatnonzero(np.isfinite(bounds))
    resolve(left[~known[left]])
    slate = np.concatenate([slate, left[choose_slate(logits[left], n - len(slate), rng)]])
    return Accepted(slate, logits[slate], int(known.sum()))


def choose_slate(logits: Doubles, n: int, rng: np.random.Generator) -> Integers:
    """(n,) different positions of logits (m,), in the order in which draws without replacement come."""
    # An item whose clock rings at an exponential time of rate exp(logit) rings first in proportion to that rate.
    return np.argsort(np.log(rng.exponential(size=len(logits))) - logits, kind="stable")[:n]


class _State:
    """Weights that items are proposed by, and the logits of those that were scored."""

    def __init__(
        self,
        upper: Doubles,
        score: Callable[[Integers], Doubles],
        known: Integers | None,
        weights: tuple[float, Doubles] | None,
    ) -> None:
        self.scored = self.spent = 0
        self._upper, self._score = upper, score
        # Memory that is never touched costs nothing: only scored items have a logit here.
        self.logits, self._known = np.empty(len(upper)), np.zeros(len(upper), bool)
        self._given = 0 if known is None else len(known)
        self._possible = int(np.isfinite(upper).sum())
        if known is not None:
            self.logits[known], self._known[known] = upper[known], True
        # Weights far above every bound that is left would never be accepted.
        if weights is None or weights[0] - float(upper.max()) > FARTHEST:
            self._peak, self._weights = _exponentials(upper)
        else:
            self._peak, self._weights = weights
            self._weights[self._known] = np.exp(upper[self._known] - self._peak)
        self._running = np.cumsum(self._weights)
        self._excess = 0.0
        """Weight that the scored items have beyond exp(logit)."""

    def is_complete(self) -> bool:
        """Whether every item that may be drawn is scored: then nothing is left to reject."""
        return self.scored + self._given >= self._possible

    def propose(self, count: int, rng: np.random.Generator) -> Integers:
        """The accepted ones of as many proposals."""
        if self._excess > EXCESS * self._running[-1]:
            self._lower()
        proposals = _pick(self._running, count, rng)
        self._resolve(np.unique(proposals))
        # A ratio of two roundings may exceed one by their last digits.
        chances = np.exp(self.logits[proposals] - self._peak) / self._weights[proposals]
        return proposals[rng.random(count) < chances]

    def choose_among_all(self, count: int, rng: np.random.Generator) -> Integers:
        """As many draws from the logits, after scoring every item."""
        self._resolve(np.flatnonzero(np.isfinite(self._upper)))
        self._lower()
        return _pick(self._running, count, rng)

    def _resolve(self, positions: Integers) -> None:
        new = positions[~self._known[positions]]
        if len(new) == 0:
            return
        self.logits[new] = self._score(new)
        self._known[new] = True
        self.scored += len(new)
        self.spent += len(new)
        self._excess += float((self._weights[new] - np.exp(self.logits[new] - self._peak)).sum())

    def _lower(self) -> None:
        """Make the logits of all scored items their bounds."""
        scored = np.flatnonzero(self._known)
        upper = np.array(self._upper)
        upper[scored] = self.logits[scored]
        peak = float(upper.max())
        if self._peak - peak > FARTHEST:
            self._peak, self._weights = _exponentials(upper)
        else:
            self._weights[scored] = np.exp(self.logits[scored] - self._peak)
        np.cumsum(self._weights, out=self._running)
        self._excess, self.spent = 0.0, self.spent + len(upper) // LOWERING


def _exponentials(logits: Doubles) -> tuple[float, Doubles]:
    """The largest logit, and exp of the others relative to it."""
    peak = float(logits.max())
    weights = np.asarray(logits - peak, np.float64)
    return peak, np.exp(weights, out=weights)


def choose(weights: Doubles, n: int, rng: np.random.Generator) -> Integers:
    """(n,) positions in proportion to weights (m,), of which at least one is above zero."""
    return _pick(np.cumsum(weights), n, rng)


def _pick(running: Doubles, n: int, rng: np.random.Generator) -> Integers:
    """The same for weights with these running sums."""
    # Searching from the right never ends on an item without weight, unless rounding reaches the total: then the last
    # item with weight is meant.
    found = np.searchsorted(running, rng.random(n) * running[-1], side="right")
    return np.asarray(np.minimum(found, np.searchsorted(running, running[-1], side="left")))
