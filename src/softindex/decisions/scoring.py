"""Logged decisions beside a policy: both propensities and the reward of each, which is all that estimators need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.decisions.batches import Batch
from softindex.decisions.log import Log, nothing_logged
from softindex.decisions.rewards import Rewards
from softindex.decisions.schema import arrow
from softindex.errors import InputError
from softindex.progress import reporting
from softindex.records import Doubles, Floats, Ids, Integers

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
    repeated: int = 0
    """Decisions that were left out, because their id came before."""
    unmatched: int = 0
    """Rewards that belong to no decision."""

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
    where: Callable[[Batch], Any] | None = None,
    rows: int = 8192,
    seed: int = 0,
    progress: bool = False,
) -> Scored:
    """Compute the propensities of a policy for every decision of a log, in batches.

    Memory: a batch of queries, and six numbers per logged item at most.

    Args:
        log: The decisions, all with the same number of items: a `where` may choose those.
        policy: A `Policy`, or any object whose `log_prob(batch)` returns (b, n).
        reward_model: For the doubly robust estimator.  Its mean under the policy is taken over `draws` draws.
        draws: See above.
        unrewarded: Whether decisions without any reward count as zero (clicks), or are left out.
        where: Which decisions to score: takes a `Batch`, and returns (b,) booleans.  None: all.
        rows: Decisions in a batch.
        seed: Of these draws.
        progress: Show a progress bar on a terminal.
    """
    total, done, rewards = len(log), 0, log.rewards()
    parts: list[dict[str, Any]] = []
    stated = _Stated(policy, seed)
    with reporting(progress) as report:
        for each in log.batches(rows, rewards):
            done += len(each)
            batch = each if where is None else each.take(np.flatnonzero(_chosen(where, each)))
            if not len(batch):
                continue
            parts.append(_score_batch(batch, policy, reward_model, draws, seed))
            stated.look_at(batch)
            if report is not None:
                report("scoring decisions", done, total)
    if not parts:
        raise nothing_logged() if where is None else InputError("where chooses no decision of the log.")
    if len({part["rewards"].shape[1] for part in parts}) > 1:
        raise InputError("decisions have different numbers of items; choose those of one with where.")
    names, numbers, rewarded, restricted = (
        [part.pop(name) for part in parts] for name in ("names", "rows", "rewarded", "restricted")
    )
    order, repeated, unmatched = _matched(names, np.concatenate(numbers), rewards)
    kept = order if unrewarded else order[np.concatenate(rewarded)[order]]
    if not len(kept):
        raise InputError("no decision has a reward; pass unrewarded=True if that means a reward of 0.")
    return Scored(
        **{name: _joined(parts, name, kept) for name in parts[0]},
        stated_error=stated.mean(),
        restricted=float(np.concatenate(restricted)[kept].mean()),
        repeated=repeated,
        unmatched=unmatched if where is None else 0,
    )


def _chosen(where: Callable[[Batch], Any], batch: Batch) -> Any:
    found = np.asarray(where(batch))
    if found.dtype != np.bool_ or found.shape != (len(batch),):
        raise InputError(
            f"where returned shape {found.shape} and type {found.dtype}; expected ({len(batch)},) booleans."
        )
    return found


def _matched(names: list[Any], numbers: Integers, rewards: Rewards) -> tuple[Integers, int, int]:
    """The decisions in the order of the log, each id once; how often ids came again; and rewards of no decision."""
    pa, _ = arrow()
    order = np.argsort(numbers, kind="stable")
    every = pa.chunked_array(names).combine_chunks().take(order)
    _, first = np.unique(every.dictionary_encode().indices.to_numpy(), return_index=True)
    strangers = int((~rewards.among(every)).sum())
    if strangers and strangers == len(rewards.names):
        raise InputError("no reward belongs to a decision of the log; pass the decision ids that append returned.")
    return order[np.sort(first)], len(order) - len(first), strangers


def _score_batch(batch: Batch, policy: Any, model: RewardModel | None, draws: int, seed: int) -> dict[str, Any]:
    part: dict[str, Any] = {
        "rows": batch.rows,
        "names": batch.decision_ids,
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
        if not hasattr(policy, "sample"):
            raise InputError("this policy cannot draw, which a reward model needs; pass a Policy.")
        shown, _ = policy.sample(batch, draws, seed)
        part["predicted"] = _predict(model, batch.queries, batch.ids)
        part["expected"] = _predict(model, batch.queries, shown).mean(axis=1, keepdims=True)
    return part


def _target(policy: Any, batch: Batch) -> Doubles:
    if not hasattr(policy, "log_prob") or hasattr(policy, "top_k"):
        raise InputError(f"the policy is a {type(policy).__name__}; pass Policy(index, temperature).")
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
            _, errors = self._policy.sample(batch.between(0, wanted), 1, self._seed)
            self._found = np.append(self._found, errors)

    def mean(self) -> float:
        """NaN where some draw states none; 0 for a policy that does not draw."""
        return float(self._found.mean()) if len(self._found) else 0.0


def _joined(parts: list[dict[str, Any]], name: str, kept: Any) -> Any:
    if any(part[name] is None for part in parts):
        return None
    return np.concatenate([part[name] for part in parts])[kept]
