"""Replay: every logged propensity is computed again, and must come out the same to the last bit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.adaptive import AdaptiveSoftmax
from softindex.decisions.asking import ask_log_prob, unlogged
from softindex.decisions.batches import Batch
from softindex.decisions.log import Log, nothing_logged
from softindex.decisions.policies import options_of
from softindex.errors import InputError
from softindex.laws import TREE_METHODS
from softindex.progress import reporting
from softindex.records import Doubles

__all__ = ["Replay", "replay"]

NO_QUERY, OTHER_STATE, CUT = "query not logged", "another snapshot", "call cut in two"
MOST_NAMED = 1000


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of every row."""

    decisions: int
    """Rows in the log."""
    compared: int
    differing: int
    """Rows with a propensity that did not come out the same."""
    examples: tuple[str, ...]
    """Decision ids of the first thousand of them."""
    largest_difference: float
    """Of a log-probability; inf where an item cannot be drawn at all."""
    skipped: dict[str, int]
    """Rows that were not compared, by reason."""

    @property
    def intact(self) -> bool:
        """Whether every row was compared, and none differs."""
        return self.differing == 0 and self.compared == self.decisions


def replay(log: Log, index: Any, *, snapshot: int | None = None, rows: int = 1 << 17, progress: bool = False) -> Replay:
    """Compute every propensity of a log again.

    Where a law's `log_prob` is what draws report, it is computed in batches.  Draws of "certified", of a tree, of
    `AdaptiveSoftmax` and of `MixtureIndex` are made again, call by call, by their seeds.

    Args:
        log: The decisions.
        index: The index, snapshot, or `Client` of the server, that made them.  Rows of another snapshot are skipped.
        snapshot: Number of the snapshot that the index was saved from; a saved index does not know it.
        rows: Decisions in a batch.  A call of more cannot be made again, and its decisions are skipped.
        progress: Show a progress bar on a terminal.
    """
    if not hasattr(index, "sample"):
        raise InputError(
            f"the index is a {type(index).__name__}; pass an index, a snapshot of a catalogue or a Client."
        )
    total, done, compared, largest = len(log), 0, 0, 0.0
    if not total:
        raise nothing_logged()
    index = unlogged(index)
    differing, skipped = _Named(), Counter[str]()
    with reporting(progress) as report:
        for batch in log.batches(rows):
            reason = _unfit(batch, index, snapshot)
            if reason is not None:
                skipped[reason] += len(batch)
            else:
                whole, again = _again(batch, index)
                skipped[CUT] += int((~whole).sum())
                compared += int(whole.sum())
                wrong = whole & ~_same(again, batch.log_prob).all(axis=1)
                differing.add(batch, wrong)
                largest = max(largest, _farthest(again[wrong], batch.log_prob[wrong]))
            done += len(batch)
            if report is not None:
                report("replaying decisions", done, total)
    reasons = {reason: count for reason, count in skipped.items() if count}
    return Replay(total, compared, differing.count, tuple(differing.names), largest, reasons)


class _Named:
    def __init__(self) -> None:
        self.count, self.names = 0, list[str]()

    def add(self, batch: Batch, wrong: Any) -> None:
        self.count += int(wrong.sum())
        rows = np.flatnonzero(wrong)[: MOST_NAMED - len(self.names)]
        self.names += [batch.decision_ids[int(row)].as_py() for row in rows]


def _unfit(batch: Batch, index: Any, snapshot: int | None) -> str | None:
    if batch.queries is None:
        return NO_QUERY
    known = getattr(index, "snapshot", None) if snapshot is None else snapshot
    other = batch.snapshot is not None and not callable(known) and known is not None and known != batch.snapshot
    return OTHER_STATE if other else None


def _again(batch: Batch, index: Any) -> tuple[Any, Doubles]:
    """(b,) which rows could be computed again, and (b, n) their log-probabilities."""
    own = hasattr(index, "log_prob") and not isinstance(index, AdaptiveSoftmax)
    drawn_again = batch.low is not None or batch.options["method"] in TREE_METHODS or not own
    if not drawn_again:
        found = ask_log_prob(index, batch.queries, batch.ids, missing="-inf", **options_of(batch))
        return np.ones(len(batch), bool), found
    found, whole = np.full(batch.log_prob.shape, np.nan), np.zeros(len(batch), bool)
    for call in _calls(batch):
        whole[call.rows] = True
        draws = index.sample(call.queries, batch.ids.shape[1], seed=int(call.seed[0]), **_options(call))
        # Another item than was logged has no propensity to compare.
        found[call.rows] = np.where(draws.ids == call.ids, draws.log_prob, -np.inf)
    return whole, found


def _options(call: Batch) -> dict[str, Any]:
    options = options_of(call)
    if options.get("replace") is True:
        options.pop("replace")
    if "candidates" in call.options:
        options["candidates"] = call.options["candidates"]
    return options


def _calls(batch: Batch) -> list[Batch]:
    """The calls whose first query is in the batch, with `rows` as the numbers of their queries in it."""
    assert batch.queries is not None
    begins = [row for row, name in enumerate(batch.request_ids) if row == 0 or name != batch.request_ids[row - 1]]
    found = []
    for begin, end in zip(begins, [*begins[1:], len(batch)], strict=True):
        if (batch.query_numbers[begin:end] == np.arange(end - begin)).all():
            found.append(batch.between(begin, end))
    return found


def _same(again: Doubles, logged: Doubles) -> Any:
    return (again == logged) | (np.isnan(again) & np.isnan(logged))


def _farthest(again: Doubles, logged: Doubles) -> float:
    distances = np.abs(again - logged)
    return float(np.nanmax(distances)) if distances.size and not np.isnan(distances).all() else 0.0
