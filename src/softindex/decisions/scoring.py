"""Logged decisions beside a policy: both propensities and the reward of each, which is all that estimators need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.decisions.batches import Batch
from softindex.decisions.log import Log
from softindex.errors import InputError
from softindex.progress import reporting
from softindex.records import Doubles, Floats, Ids

__all__ = ["RewardModel", "Scored", "score"]

RewardModel = Callable[[Floats, Ids], Doubles]
"""Takes queries (b, d) and ids (b, m), and returns expected rewards (b, m)."""
ROUNDING = 1e-6
"""The logarithm of a probability is not above this."""
STATED = 1024
"""Decisions whose stated error under the policy is looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """N decisions with n items each, under the policy that was logged and under another."""

    rewards: Doubles
    """(N, n) of each item; a reward of a decision as a whole is that of its last item."""
    logged: Doubles
    """(N, n) log-probability of each item when it was drawn; of each step of a slate."""
    target: Doubles
    """(N, n) the same under the new policy; -inf where it never shows the item."""
    low: Doubles | None = None
    """(N, n) proven bounds on `logged`, where draws had some ("certified")."""
    high: Doubles | None = None
    predicted: Doubles | None = None
    """(N, n) expected reward of each item, by a model."""
    expected: Doubles | None = None
    """(N, n) its mean over what the new policy would show at that place."""
    logged_positions: Doubles | None = None
    """(N, n) log-probability that the item is at its position, whatever is before it; see `position_marginals`."""
    target_positions: Doubles | None = None
    stated_error: float = 0.0
    """Mean total variation that the new policy's draws state; NaN where they state none."""
    restricted: float = 0.0
    """Share of decisions that were drawn from the k best or from a nucleus."""

    def __len__(self) -> int:
        return len(self.rewards)

    def __post_init__(self) -> None:
        shape = self.rewards.shape
        if self.rewards.ndim != 2 or shape[0] == 0:
            raise InputError(f"rewards have shape {shape}; expected (N, n), one row per decision, at least one.")
        for name in (
            "logged",
            "target",
            "low",
            "high",
            "predicted",
            "expected",
            "logged_positions",
            "target_positions",
        ):
            values = getattr(self, name)
            if values is not None and values.shape != shape:
                raise InputError(f"{name} has shape {values.shape} but rewards have {shape}; pass one for each item.")
        if not np.isfinite(self.logged).all():
            raise InputError(
                "a logged log_prob is not finite: draws of this method do not know it (exact draws of a MixtureIndex); "
                "log a method that does."
            )


def score(
    log: Log,
    policy: Any,
    *,
    reward_model: RewardModel | None = None,
    draws: int = 16,
    unrewarded: bool = True,
    rows: int = 8192,
    seed: int = 0,
    progress: bool = False,
) -> Scored:
    """Compute the propensities of a policy for every decision of a log, in batches.

    Memory: a batch of queries, and six numbers per logged item at most.

    Args:
        log: The decisions, all with the same number of items.
        policy: A `Policy`, or any object whose `log_prob(batch)` returns (b, n).
        reward_model: For the doubly robust estimator.  Its mean under the policy is taken over `draws` draws.
        draws: See above.
        unrewarded: Whether decisions without any reward count as zero (clicks), or are left out.
        rows: Decisions in a batch.
        seed: Of these draws.
        progress: Show a progress bar on a terminal.
    """
    total, done = len(log), 0
    parts: list[dict[str, Any]] = []
    stated = _Stated(policy, seed)
    with reporting(progress) as report:
        for batch in log.batches(rows):
            parts.append(_score_batch(batch, policy, reward_model, draws, seed))
            stated.look_at(batch)
            done += len(batch)
            if report is not None:
                report("scoring decisions", done, total)
    if not parts:
        raise InputError("the log holds no decisions; check the directory, and that the server has closed its files.")
    if not any(part["rewarded"].any() for part in parts) and len(log.rewards().names):
        raise InputError("no reward belongs to a decision of the log; pass the decision ids that append returned.")
    if len({part["rewards"].shape[1] for part in parts}) > 1:
        raise InputError("decisions have different numbers of items; keep logs of different slates in two directories.")
    order = np.argsort(np.concatenate([part.pop("rows") for part in parts]), kind="stable")
    kept = order if unrewarded else order[np.concatenate([part["rewarded"] for part in parts])[order]]
    restricted = float(np.concatenate([part.pop("restricted") for part in parts])[kept].mean()) if len(kept) else 0.0
    for part in parts:
        part.pop("rewarded")
    columns = {name: _joined(parts, name, kept) for name in parts[0]}
    return Scored(**columns, stated_error=stated.mean(), restricted=restricted)


def _score_batch(batch: Batch, policy: Any, model: RewardModel | None, draws: int, seed: int) -> dict[str, Any]:
    part: dict[str, Any] = {
        "rows": batch.rows,
        "rewards": batch.rewards,
        "rewarded": batch.rewarded,
        "logged": batch.log_prob,
        "target": _target(policy, batch),
        "low": batch.low,
        "high": batch.high,
        "restricted": np.full(len(batch), batch.restricted),
    }
    if model is not None:
        if batch.ids.shape[1] > 1:
            raise InputError("a reward model is for decisions of one item; leave it out for slates.")
        if batch.queries is None:
            raise InputError("this log keeps hashes of the queries; a reward model needs the queries themselves.")
        shown = policy.sample(batch, draws, seed)
        part["predicted"] = _predict(model, batch.queries, batch.ids)
        part["expected"] = _predict(model, batch.queries, shown.ids).mean(axis=1, keepdims=True)
    return part


def _target(policy: Any, batch: Batch) -> Doubles:
    if not hasattr(policy, "log_prob"):
        raise InputError(f"the policy is a {type(policy).__name__}; pass a Policy or an object with log_prob(batch).")
    found = np.asarray(policy.log_prob(batch), np.float64)
    if found.shape != batch.log_prob.shape:
        raise InputError(f"log_prob of the policy has shape {found.shape}; expected {batch.log_prob.shape}.")
    if not (found <= ROUNDING).all():
        raise InputError("log_prob of the policy has a value that is no log-probability: above 0, or not a number.")
    return found


def _predict(model: RewardModel, queries: Floats, ids: Ids) -> Doubles:
    found = np.asarray(model(queries, ids), np.float64)
    if found.shape != ids.shape or not np.isfinite(found).all():
        raise InputError(f"the reward model returned shape {found.shape}; expected {ids.shape} finite numbers.")
    return found


class _Stated:
    """The errors that draws of a policy state, for the first decisions of a log."""

    def __init__(self, policy: Any, seed: int) -> None:
        self._policy, self._seed, self._found = policy, seed, np.empty(0)

    def look_at(self, batch: Batch) -> None:
        wanted = STATED - len(self._found)
        if wanted > 0 and hasattr(self._policy, "sample"):
            errors = self._policy.sample(batch.between(0, wanted), 1, self._seed).error
            self._found = np.append(self._found, errors)

    def mean(self) -> float:
        """NaN where some draw states none; 0 for a policy that does not draw."""
        return float(self._found.mean()) if len(self._found) else 0.0


def _joined(parts: list[dict[str, Any]], name: str, kept: Any) -> Any:
    if any(part[name] is None for part in parts):
        return None
    return np.concatenate([part[name] for part in parts])[kept]
