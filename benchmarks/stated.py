"""How reliable the stated error of the default is, over families of vectors and kinds of queries.

`python -m benchmarks.stated [FAMILY ...] [--items N]` prints one line per family and kind, without touching any page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import softindex
from benchmarks.families import FAMILIES, STANDARD, Family, open_family
from benchmarks.tables import Table
from softindex.evaluate.distances import between

__all__ = ["TEMPERATURES", "Row", "measure_family", "run"]

TEMPERATURES = (0.02, 0.05, 0.1, 0.2)
ITEMS = 50_000
QUERIES = 200


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One family and kind of query at one temperature."""

    family: str
    kind: str
    temperature: float
    stated: NDArray[np.float64]
    """(b,) error as stated."""
    measured: NDArray[np.float64]
    """(b,) total variation."""
    kl: NDArray[np.float64]
    """(b,) KL(law || softmax)."""

    @property
    def exceeded(self) -> float:
        """Share of the queries with a total variation above twice the stated error plus 0.01."""
        return float((self.measured > 2 * self.stated + 0.01).mean())

    def cell(self) -> str:
        """The row as text: share exceeded, stated and measured error, KL."""
        return f"{self.exceeded:.1%}, {self.stated.mean():.3f} / {self.measured.mean():.3f}, {self.kl.mean():.1e}"


def measure_family(
    index: Any, family: Family, temperatures: Sequence[float] = TEMPERATURES, **options: Any
) -> Iterator[Row]:
    """A row for every kind of query and temperature; `options` are those of a draw, such as probes or tolerance."""
    for kind, queries in family.queries.items():
        for temperature in temperatures:
            law, stated, _ = index.cluster_log_masses(
                queries, temperature=temperature, threads=1, **{"method": "sd-2ls", **options}
            )
            truth = index.cluster_log_masses(queries, temperature=temperature, method="exact", threads=1)[0]
            found = between(law, truth)
            yield Row(family.name, kind, temperature, stated, found.total_variation, found.kl)


def measure(names: Sequence[str], items: int) -> Iterator[Row]:
    """Every row of the families named."""
    for name in names:
        family = open_family(name, n=items, queries=QUERIES)
        if family is not None:
            yield from measure_family(softindex.build(family.items, threads=1), family)


def run(options: Any) -> list[Table]:
    """The table over all families, and a summary of it."""
    items = min(options.items, ITEMS)
    rows = list(measure(tuple(FAMILIES), items))
    by_case: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_case.setdefault((row.family, row.kind), []).append(row)
    columns = [f"t = {temperature:g}" for temperature in TEMPERATURES]
    count = f"{QUERIES} queries of each kind, {items:,} items or all of a smaller set"
    return [
        Table(
            f"Share of queries whose total variation exceeds 2 x stated + 0.01, over all families; {count}",
            ["queries", *columns, "all", "families above 2 % at some t"],
            [_summary(kind, group) for kind, group in _kinds(rows)],
        ),
        Table(
            f"Each family and kind of query: share exceeded, mean stated / measured error, mean KL; {count}",
            ["family", "queries", *columns],
            [[family, kind, *(row.cell() for row in group)] for (family, kind), group in by_case.items()],
        ),
    ]


def _kinds(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of each kind of query, held-out ones first, and those of all kinds."""
    for kind in dict.fromkeys([STANDARD, *(row.kind for row in rows)]):
        yield kind, [row for row in rows if row.kind == kind]
    yield "all", list(rows)


def _summary(kind: str, rows: Sequence[Row]) -> list[str]:
    shares = {t: [row.exceeded for row in rows if row.temperature == t] for t in TEMPERATURES}
    above = {row.family for row in rows if row.exceeded > 0.02}
    of = len({row.family for row in rows})
    means = [f"{np.mean(share):.1%}" for share in shares.values()]
    return [kind, *means, f"{np.mean([row.exceeded for row in rows]):.1%}", f"{len(above)} of {of}"]


def main() -> None:
    """Print rows as they are measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stated", description=__doc__)
    parser.add_argument("families", nargs="*", help=f"of {', '.join(FAMILIES)}; all when left out")
    parser.add_argument("--items", type=int, default=ITEMS)
    options = parser.parse_args()
    rows: list[Row] = []
    for row in measure(options.families or tuple(FAMILIES), options.items):
        if row.temperature == TEMPERATURES[0]:
            print(f"\n{row.family:18s} {row.kind:13s}", end="")
        print(f" | {row.cell()}", end="", flush=True)
        rows.append(row)
    print()
    for kind, group in _kinds(rows):
        if group:
            print("  ".join(_summary(kind, group)))


if __name__ == "__main__":
    main()
