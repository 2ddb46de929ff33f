"""The demo: build an index of synthetic data, and compare the error and the speed of the methods."""

from __future__ import annotations

from collections.abc import Sequence

from softindex.builder import build
from softindex.evaluate import LEGEND as COLUMNS
from softindex.evaluate import Audit, Row
from softindex.evaluate.datasets import synth_unbalanced
from softindex.laws import CERTIFIED

__all__ = ["LEGEND", "compare", "conclude"]

METHODS = ("exact", CERTIFIED, "2ls:0", "s-2ls:0", "sd-2ls:0", "sd-2ls")
QUERIES = 30
"""Vectors like the items, held out of them."""
LEGEND = (
    f"t is the temperature. {COLUMNS} Published and no probes: the method chooses a cluster before it scores any item "
    "(probes=0). The published sd-2ls keeps full covariances; this index keeps rank 8. The default first scans the "
    "clusters that matter most."
)


def compare(items: int, *, seed: int, threads: int | None) -> Audit:
    """Build an index of synthetic items, in groups of very different size, and audit it."""
    groups = max(1, round(items**0.5))
    vectors = synth_unbalanced(items + QUERIES, d=64, groups=groups, seed=seed).vectors
    index = build(vectors[:items], codes=True, seed=seed, threads=threads, progress=True)
    return index.audit(vectors[items:], methods=METHODS, seed=seed, threads=threads, progress=True)


def conclude(found: Audit) -> str:
    """The conclusion of the audit, in words."""
    default, unprobed, certified = (
        [row for row in found.rows if row.method == method] for method in ("sd-2ls", "sd-2ls:0", CERTIFIED)
    )
    stated = max(row.stated_error or 0.0 for row in default)
    return (
        "Conclusion: start with the default, and read the error that it reports. Here it is at least "
        f"{_slowest(default):.1f} times as fast as scoring every item. Its mean TV is up to {_largest(default):.2g}, "
        f"and it reports up to {stated:.2g}. sd-2ls without probes is up to {_largest(unprobed):.2g} off and reports "
        "no error. Where no error is allowed, use certified: the exact softmax, here at least "
        f"{_slowest(certified):.1f} times as fast as exact. For your own vectors, run softindex build, then softindex "
        "audit."
    )


def _largest(rows: Sequence[Row]) -> float:
    return max(row.total_variation.value for row in rows)


def _slowest(rows: Sequence[Row]) -> float:
    return min(row.speedup for row in rows)
