"""Logs in the formats of other tools: the Open Bandit Pipeline and Vowpal Wabbit."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from softindex.decisions.batches import Batch
from softindex.decisions.log import Log, nothing_logged
from softindex.errors import InputError, SaveError
from softindex.records import Doubles, Integers

__all__ = ["action_distribution", "to_obp", "to_obp_slates", "to_vw"]


def to_obp(log: Log, ids: Any) -> dict[str, Any]:
    """The log as bandit feedback of the Open Bandit Pipeline, for decisions of one item.

    Args:
        log: The decisions.
        ids: (m,) all items; an action is the number of an item among them.

    Returns:
        n_rounds, n_actions, context, action, position, reward and pscore.
    """
    batches = _ordered(log, 1)
    actions = np.concatenate([_numbers(batch.ids[:, 0], ids) for batch in batches])
    return {
        "n_rounds": len(actions),
        "n_actions": len(ids),
        "context": np.concatenate([_queries(batch) for batch in batches]),
        "action": actions,
        "position": None,
        "reward": np.concatenate([batch.rewards[:, 0] for batch in batches]),
        "pscore": np.exp(np.concatenate([batch.log_prob[:, 0] for batch in batches])),
    }


def to_obp_slates(log: Log, ids: Any) -> dict[str, Any]:
    """The log as slate feedback of the Open Bandit Pipeline: one row per item of a slate, in its order.

    Args:
        log: The decisions, all with the same number of items.
        ids: As for `to_obp`.

    Returns:
        slate_id, position, action, reward, pscore (of the slate) and pscore_cascade (of the items up to this one).
    """
    batches = _ordered(log, None)
    steps = np.concatenate([batch.log_prob for batch in batches])
    total, n = steps.shape
    return {
        "n_rounds": total,
        "slate_id": np.repeat(np.arange(total), n),
        "position": np.tile(np.arange(n), total),
        "action": np.concatenate([_numbers(batch.ids, ids).ravel() for batch in batches]),
        "reward": np.concatenate([batch.rewards.ravel() for batch in batches]),
        "pscore": np.repeat(np.exp(steps.sum(axis=1)), n),
        "pscore_cascade": np.exp(np.cumsum(steps, axis=1)).ravel(),
    }


def action_distribution(log: Log, policy: Any, ids: Any) -> Doubles:
    """(N, m, 1) probabilities of all items under a policy, for every decision, as the Open Bandit Pipeline takes them.

    For small sets of items only: it has N m numbers.
    """
    parts = []
    for batch in _ordered(log, 1):
        options = {**policy.options, **{name: getattr(batch, name) for name in ("exclude", "allow")}}
        law = policy.index.log_prob(policy.queries(batch), ids, temperature=policy.temperature, **options)
        parts.append(np.exp(law)[:, :, None])
    return np.concatenate(parts)


def to_vw(log: Log, path: str | os.PathLike[str], ids: Any) -> int:
    """Write the log as a file for `vw --cb`: action:cost:probability | features, one line per decision of one item.

    Args:
        log: The decisions.
        path: The file.
        ids: (m,) all items; Vowpal Wabbit counts actions from 1.

    Returns:
        The number of lines.
    """
    count, batches = 0, _ordered(log, 1)
    try:
        file = open(path, "w", encoding="ascii")  # noqa: SIM115 - closed below
    except OSError as error:
        raise SaveError(f"{os.fspath(path)} could not be written ({error}); choose another place.") from error
    with file:
        for batch in batches:
            actions, chances = _numbers(batch.ids[:, 0], ids) + 1, np.exp(batch.log_prob[:, 0])
            for action, reward, chance, query in zip(
                actions.tolist(), batch.rewards[:, 0].tolist(), chances.tolist(), _queries(batch).tolist(), strict=True
            ):
                features = " ".join(f"{number}:{value!r}" for number, value in enumerate(query))
                file.write(f"{action}:{0.0 - reward!r}:{chance!r} | {features}\n")
            count += len(batch)
    return count


def _ordered(log: Log, n: int | None) -> list[Batch]:
    batches = list(log.batches())
    if not batches:
        raise nothing_logged()
    if len({batch.ids.shape[1] for batch in batches}) > 1:
        raise InputError("decisions have different numbers of items; keep those of each number in a log of their own.")
    if n is not None and batches[0].ids.shape[1] != n:
        raise InputError(f"decisions have {batches[0].ids.shape[1]} items; export slates with to_obp_slates.")
    return batches


def _queries(batch: Batch) -> Any:
    if batch.queries is None:
        raise InputError("this log keeps hashes of the queries; other tools need the queries themselves.")
    return batch.queries


def _numbers(wanted: Any, ids: Any) -> Integers:
    """The number of each id among all."""
    table = np.asarray(ids)
    order = np.argsort(table, kind="stable")
    place = np.minimum(np.searchsorted(table, wanted, sorter=order), len(table) - 1)
    found: Integers = order[place]
    if len(np.unique(table)) < len(table):
        raise InputError("an id is given more than once; pass each item once.")
    if not (table[found] == wanted).all():
        raise InputError("a logged item is not among ids; pass the ids of all items that may have been shown.")
    return found
