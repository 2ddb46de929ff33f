"""The demo: build an index of a made-up shop, draw from it, and compare the error and the speed of the methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from softindex.builder import build
from softindex.evaluate import LEGEND as COLUMNS
from softindex.evaluate import TEMPERATURES, Audit, Row
from softindex.evaluate.shop import shop
from softindex.laws import CERTIFIED
from softindex.records import Json

__all__ = ["LEGEND", "Demo", "compare"]

DEFAULT = "sd-2ls"
SHORT = ("exact", CERTIFIED, DEFAULT)
ALL = ("exact", CERTIFIED, "2ls:0", "s-2ls:0", "sd-2ls:0", DEFAULT)
TEMPERATURE = 0.05
QUERIES = 30
"""Items held out of the shop."""
DRAWS = 5
LEGEND = (
    f"{COLUMNS} Published and no probes: the method chooses a cluster before it scores any item (probes=0). The "
    "published sd-2ls keeps full covariances; this index keeps rank 8. The default first scans the clusters that "
    "matter most."
)


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demo found."""

    audit: Audit
    query: str
    """The name of the item, held out of the shop, that serves as the query."""
    drawn: tuple[tuple[str, float], ...]
    """Items drawn for it at TEMPERATURE, and the probability that one draw returns each."""

    def conclude(self) -> str:
        """The conclusion, in words."""
        default, certified = (_row(self.audit.at(TEMPERATURE), method) for method in (DEFAULT, CERTIFIED))
        return (
            f"The default draws one of {self.audit.parameters['items']:,} items in "
            f"{default.microseconds.value:,.0f} microseconds, {default.speedup:.0f} times as fast as scoring every "
            f"item. It reports an error of {default.stated_error:.2g}; measured, the error is "
            f"{default.total_variation.value:.2g}. (Total variation: 0 is the softmax itself, 1 is as far from it as "
            "can be.) Where no error is allowed, certified draws follow the softmax exactly, with proof, "
            f"{certified.speedup:.0f} times as fast as scoring every item."
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows of the short table: three methods at one temperature."""
        rows = [_row(self.audit.at(TEMPERATURE), method).cells() for method in SHORT]
        names = {
            "method": "method",
            "microseconds": "microseconds",
            "speed-up": "speed-up",
            "TV": "measured error",
            "stated TV": "reported error",
        }
        return list(names.values()), [[row[name] for name in names] for row in rows]

    def to_dict(self) -> Json:
        """The audit and the draws, ready for JSON."""
        drawn = [{"id": name, "probability": probability} for name, probability in self.drawn]
        return {**self.audit.to_dict(), "query": self.query, "temperature": TEMPERATURE, "drawn": drawn}


def compare(items: int, *, seed: int, threads: int | None, every_method: bool) -> Demo:
    """Build an index of a made-up shop, audit it, and draw for one of the items that were held out."""
    names, vectors = shop(items + QUERIES, seed=seed)
    index = build(vectors[:items], ids=names[:items], codes=True, seed=seed, threads=threads, progress=True)
    found = index.audit(
        vectors[items:],
        methods=ALL if every_method else SHORT,
        temperatures=TEMPERATURES if every_method else (TEMPERATURE,),
        seed=seed,
        threads=threads,
        progress=True,
    )
    draws = index.sample(vectors[items], n=DRAWS, temperature=TEMPERATURE, seed=seed)
    drawn = zip(draws.ids.tolist(), np.exp(draws.log_prob).tolist(), strict=True)
    return Demo(found, names[items], tuple(drawn))


def _row(rows: Sequence[Row], method: str) -> Row:
    return next(row for row in rows if row.method == method)
