"""Rewards, which come later than decisions, summed by decision and by position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.decisions import schema
from softindex.errors import InputError
from softindex.records import Doubles

__all__ = ["Rewards", "read_rewards"]


@dataclass(frozen=True, slots=True)
class Rewards:
    """Sums of rewards: of decisions as a whole, and of their items."""

    names: Any
    """Arrow array (m,) of decision ids, each as often as it has different positions."""
    positions: Any
    """(m,) int64; -1 for a reward of the decision as a whole."""
    values: Doubles
    """(m,)"""

    def among(self, decision_ids: Any) -> Any:
        """(m,) whether the decision of each reward is one of these."""
        from pyarrow import compute

        return compute.is_in(self.names, value_set=decision_ids).to_numpy(zero_copy_only=False)

    def of(self, decision_ids: Any, n: int) -> tuple[Doubles, Any]:
        """Rewards (b, n) of decisions with n items each, and (b,) whether there was any.

        A reward of a decision as a whole goes to its last item, whose weight is that of the entire slate.
        """
        from pyarrow import compute

        found, known = np.zeros((len(decision_ids), n)), np.zeros(len(decision_ids), bool)
        if len(self.names):
            rows = compute.index_in(self.names, value_set=decision_ids).to_numpy(zero_copy_only=False)
            here = np.flatnonzero(~np.isnan(rows.astype(np.float64)))
            at, places = rows[here].astype(np.int64), self.positions[here]
            for wrong in np.flatnonzero(places >= n):
                name = self.names[int(here[wrong])].as_py()
                raise InputError(f"a reward is for position {places[wrong]} of {name}, which has {n} items, from 0 on.")
            np.add.at(found, (at, np.where(places < 0, n - 1, places)), self.values[here])
            known[at] = True
        return found, known


def read_rewards(paths: list[str]) -> Rewards:
    """Read files of rewards, and sum what belongs together."""
    pa, parquet = schema.arrow()
    if not paths:
        return Rewards(pa.array([], pa.string()), np.empty(0, np.int64), np.empty(0))
    tables = []
    for path in paths:
        with schema.reading(path):
            tables.append(parquet.read_table(path))
    table = pa.concat_tables(tables)
    summed = table.group_by(["decision_id", "position"]).aggregate([("reward", "sum")])
    positions = summed["position"].fill_null(-1).to_numpy()
    return Rewards(summed["decision_id"].combine_chunks(), positions.astype(np.int64), summed["reward_sum"].to_numpy())
