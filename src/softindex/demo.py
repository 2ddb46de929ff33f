"""The library's main job on a catalogue made up on the spot: how close each law is, and how fast."""

from __future__ import annotations

from collections.abc import Sequence

from softindex.builder import build
from softindex.evaluate import Audit, Row
from softindex.evaluate.datasets import synth_unbalanced
from softindex.laws import CERTIFIED

__all__ = ["LEGEND", "compare", "conclude"]

ASKED = ("exact", CERTIFIED, "2ls:0", "s-2ls:0", "sd-2ls:0", "sd-2ls")
LEGEND = (
    "t is the temperature. KL(law || softmax) and TV, the total variation (the probability that lies on the wrong "
    "items, 0 to 1), are measured over all items against the softmax in float64; those of certified are 0 by proof. "
    "Stated error: the TV that a method itself estimates and tells with its draws, as draws.error; - where it tells "
    "none. These and the items scored are means over the queries; microseconds are the median of one draw, speed-up "
    "is against exact. Published is a law that chooses a cluster before it looks at any item (probes=0); the default "
    "first scans the clusters that matter most."
)


def compare(items: int, *, seed: int, threads: int | None) -> Audit:
    """Build an index of a made-up catalogue, items around groups of very different popularity, and audit it."""
    groups = max(1, round(items**0.5))
    vectors = synth_unbalanced(items, d=64, groups=groups, seed=seed).vectors
    index = build(vectors, codes=True, seed=seed, threads=threads, progress=True)
    return index.audit(count=30, methods=ASKED, seed=seed, threads=threads, progress=True)


def conclude(found: Audit) -> str:
    """What to take from the audit, in words."""
    default, published, certified = (
        [row for row in found.rows if row.method == asked] for asked in ("sd-2ls", "sd-2ls:0", CERTIFIED)
    )
    stated = max(row.stated_error or 0.0 for row in default)
    return (
        "What to take from it: start with the default, and read the error that it states. Here it is at least "
        f"{_slowest(default):.1f} times as fast as scoring every item, its mean TV is up to {_farthest(default):.2g}, "
        f"and it states up to {stated:.2g}; sd-2ls as published is up to {_farthest(published):.2g} off and does not "
        "say so. Where no error is allowed, use certified: the softmax itself, here at least "
        f"{_slowest(certified):.1f} times as fast as exact. On your own vectors: softindex build, then softindex audit."
    )


def _farthest(rows: Sequence[Row]) -> float:
    return max(row.total_variation.value for row in rows)


def _slowest(rows: Sequence[Row]) -> float:
    return min(row.speedup for row in rows)
