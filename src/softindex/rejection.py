"""Exact draws from a softmax by rejection under upper bounds, so that most items are never scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from softindex.records import Doubles, Integers

__all__ = ["Accepted", "choose", "draw"]

MORE = 16
"""Extra proposals per round: scoring a few more items costs less than another round."""
FARTHEST = 30.0
"""Once the largest bound has fallen by more, weights are computed again: at 700 they would all be zero."""


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
) -> Accepted:
    """Draw n positions, each with probability proportional to exp(logit).

    A position is proposed in proportion to exp(upper bound) and accepted with probability exp(logit - upper bound).  A
    scored item has its logit as the new bound, so it is never rejected again.  Once proposals have used up the budget,
    every item is scored and the missing draws come from the logits themselves.  That decision is always made before a
    round of proposals: dropping proposals that have been seen would change the distribution.

    Args:
        upper: (m,) no logit exceeds its bound, rounding included; -inf for an item that must not be drawn.
        score: Gives the logits of positions (increasing, each once).  Called at most once per position.
        n: Number of draws.
        rng: Source of the draws.
        budget: Number of items that proposals may score before all are scored.
        known: Positions whose bound is the logit itself; they are not scored.
    """
    state = _State(upper, score, known)
    positions: list[Integers] = []
    accepted = proposed = 0
    while accepted < n:
        rate = (accepted + 1) / (proposed + 1) if proposed else 1.0
        wanted = min(int(1.2 * (n - accepted) / rate) + MORE, max(1024, 4 * n))
        affordable = min(wanted, budget - state.scored)
        # Each round takes all it wants or half of the budget, so that there are never many small ones.
        if affordable < wanted and 2 * affordable < budget:
            state.score_all()
            positions.append(choose(state.weights(), n - accepted, rng))
            break
        good = state.propose(affordable, rng)[: n - accepted]
        positions.append(good)
        accepted, proposed = accepted + len(good), proposed + affordable
    found = np.concatenate(positions)
    return Accepted(found, state.bounds[found], state.scored)


class _State:
    """Bounds of the logits, which become the logits where items are scored."""

    def __init__(self, upper: Doubles, score: Callable[[Integers], Doubles], known: Integers | None) -> None:
        self.bounds, self.scored, self._score = np.array(upper, np.float64), 0, score
        self._known = np.zeros(len(self.bounds), bool)
        if known is not None:
            self._known[known] = True
        self._peak = float(self.bounds.max())
        self._weights = np.exp(self.bounds - self._peak)

    def weights(self) -> Doubles:
        """exp of the bounds, up to a common factor."""
        peak = float(self.bounds.max())
        if self._peak - peak > FARTHEST:
            self._peak, self._weights = peak, np.exp(self.bounds - peak)
        return self._weights

    def propose(self, count: int, rng: np.random.Generator) -> Integers:
        """The accepted ones of as many proposals."""
        proposals = choose(self.weights(), count, rng)
        before = self.bounds[proposals]
        self._resolve(np.unique(proposals))
        chances = np.exp(np.minimum(0.0, self.bounds[proposals] - before))
        return proposals[rng.random(count) < chances]

    def score_all(self) -> None:
        self._resolve(np.flatnonzero(np.isfinite(self.bounds)))

    def _resolve(self, positions: Integers) -> None:
        new = positions[~self._known[positions]]
        if len(new) == 0:
            return
        self.bounds[new] = self._score(new)
        self._weights[new] = np.exp(self.bounds[new] - self._peak)
        self._known[new] = True
        self.scored += len(new)


def choose(weights: Doubles, n: int, rng: np.random.Generator) -> Integers:
    """(n,) positions in proportion to weights (m,), of which at least one is above zero."""
    running = np.cumsum(weights)
    # Searching from the right never ends on an item without weight, unless rounding reaches the total: then the last
    # item with weight is meant.
    found = np.searchsorted(running, rng.random(n) * running[-1], side="right")
    return np.asarray(np.minimum(found, np.searchsorted(running, running[-1], side="left")))
