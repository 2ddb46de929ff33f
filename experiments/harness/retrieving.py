"""Recall of every search method of a MixtureIndex: of its true best items, and of the users' next items."""

import numpy as np

from benchmarks.tables import Table, place

K = 100
"""Results per query."""
BEST = 10
"""The next item is a hit if it is among this many results."""
CANDIDATES = (100, 200, 500, 1000, 2000, 4000)
PER_PAIR = (100, 200, 500)
BOTH = ((20, 200), (20, 500), (50, 1000))
"""Candidates per pair of components, and by the average."""


def ways(items):
    """Methods and numbers of candidates to compare for this many items."""
    yield "brute-force", None
    yield "two-pass", None
    for method, counts in (("clusters", CANDIDATES), ("average", CANDIDATES), ("per-embedding", PER_PAIR)):
        yield from ((method, count) for count in counts if count < items)
    yield from (("combined", counts) for counts in BOTH if counts[1] < items)


def measure(index, queries, seen, wanted, threads=None):
    """Set recall, hits, and shares of proven results and scored items, by method and candidates.

    queries (b, D); seen: items of each user, excluded from the results; wanted (b,): the next item of each user.
    """
    measured, truth = {}, None
    for method, candidates in ways(len(index)):
        options = {} if candidates is None else {"candidates": candidates}
        best = index.top_k(queries, K, method=method, exclude=seen, threads=threads, **options)
        truth = best.ids if truth is None else truth
        common = [len(np.intersect1d(ids, true_ids)) for ids, true_ids in zip(best.ids, truth, strict=True)]
        measured[method, candidates] = {
            "recall": np.mean(common) / K,
            "hits": (best.ids[:, :BEST] == np.asarray(wanted)[:, None]).any(axis=1).mean(),
            "proven": best.proven.mean(),
            "scored": np.mean(best.items_scored) / len(index),
        }
    return measured


def publish(measured, title, section, page):
    """Print the table, and write it between the section's marks in the page."""
    columns = ["method", "candidates", f"set recall@{K}", f"HR@{BEST}", "results proven", "items scored"]
    rows = []
    for (method, candidates), one in measured.items():
        pair = isinstance(candidates, tuple)
        count = "" if candidates is None else " and ".join(map(str, candidates)) if pair else str(candidates)
        figures = [f"{one['recall']:.4f}", f"{one['hits']:.4f}", f"{one['proven']:.1%}", f"{one['scored']:.1%}"]
        rows.append([method, count, *figures])
    table = Table(title, columns, rows).markdown()
    print(table)
    if page is not None:
        place(page, section, f"\n{table}\n")
