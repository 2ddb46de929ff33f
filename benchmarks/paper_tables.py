"""Tables 1 and 2 of the paper with our measurements, and the paper's own figures beside them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.paper_measure import Bench
from benchmarks.published import PAPER_CLUSTERS, PAPER_ITEMS, PAPER_KL, PAPER_LATENCY, PAPER_NAMES
from benchmarks.tables import Table
from softindex.evaluate.audit import TEMPERATURES
from softindex.evaluate.numbers import short
from softindex.laws import TREE_METHODS

__all__ = ["kl_table", "latency_table"]

NAMED = {
    "hierarchical": "hierarchical, 1024 a leaf",
    "s-hierarchical": "s-hierarchical, 1024 a leaf",
    "sd-hierarchical": "sd-hierarchical, rank 8, 1024 a leaf",
    "top-k": "top-k, proven",
    "sd-2ls, full covariances": "sd-2ls, published (full covariances)",
    "sd-2ls, rank 8": "sd-2ls, rank 8, no probes",
}
"""Names in the tables that say more than the key."""


def kl_table(measured: Sequence[Bench], clusters: int, *, held_out: bool = False) -> Table:
    """Table 1 of the paper, with its own figures after the slash where they are comparable."""
    columns, ours = PAPER_NAMES[1:], ("default", "sd-2ls, rank 8", "top-k", "s-hierarchical", "sd-hierarchical")
    rows, compared = [], False
    for t in TEMPERATURES:
        for bench in measured:
            theirs = PAPER_KL[bench.name, t] if _comparable(bench, clusters) else None
            compared |= theirs is not None
            cells = [_pair(bench.kl[label, t], theirs and theirs[place]) for place, label in enumerate(columns)]
            rows.append([f"{t:g}", bench.name, *(_pair(bench.kl[label, t]) for label in ours), *cells])
    kind = "held out" if held_out else "drawn from the items"
    count = ", ".join(dict.fromkeys(str(bench.queries) for bench in measured))
    title = f"KL(law || softmax), mean of {count} queries {kind} ± half the 95 % interval, K = {clusters}"
    heads = ["t", "set", *(NAMED.get(label, label) for label in (*ours, *columns))]
    return Table(_titled(title, compared), heads, rows)


def _titled(title: str, compared: bool) -> str:
    return f"{title}; after the slash the paper's figure" if compared else title


def _comparable(bench: Bench, clusters: int) -> bool:
    """Whether the paper has figures for this set, or for this set with the held-out queries."""
    wanted = PAPER_ITEMS.get(bench.name, 0)
    return clusters == PAPER_CLUSTERS and wanted - bench.queries <= bench.items <= wanted


def _pair(ours: tuple[float, float], theirs: float | None = None) -> str:
    text = f"{short(ours[0])} ± {short(ours[1])}"
    return text if theirs is None else f"{text} / {short(theirs)}"


def latency_table(measured: Sequence[Bench], timed: int, clusters: int) -> Table:
    """Table 2 of the paper: milliseconds and speed-up over NumPy exact, with its own figures after the slash."""
    rows, compared = [], False
    for label in measured[0].milliseconds:
        row = [label if label in TREE_METHODS else NAMED.get(label, label)]
        for bench in measured:
            reference = bench.milliseconds["NumPy exact"]
            text = f"{bench.milliseconds[label]:.3g} ({reference / bench.milliseconds[label]:,.1f}x)"
            if _comparable(bench, clusters) and label in PAPER_NAMES:
                theirs, place, compared = PAPER_LATENCY[bench.name], PAPER_NAMES.index(label), True
                text += f" / {theirs[place]:.3g} ({theirs[0] / theirs[place]:.1f}x)"
            row.append(text)
        rows.append(row)
    title = (
        f"Milliseconds per draw (and speed-up over NumPy exact), median of {timed} queries at the three temperatures, "
        f"one thread, taking turns, K = {clusters}"
    )
    heads = ["method", *(f"{bench.name}, {bench.items:,} items" for bench in measured)]
    return Table(_titled(title, compared), heads, rows)
