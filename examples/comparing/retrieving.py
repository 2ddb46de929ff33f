"""What each way to search a catalogue finds of its true best items, and of the items that users took."""

import numpy as np

from softindex.evaluate.tables import Table, place

K = 100
"""Results of each query."""
BEST = 10
"""Among so many of them the item that was taken is a hit."""
CANDIDATES = (100, 200, 500, 1000, 2000, 4000)
PER_PAIR = (100, 200, 500)
BOTH = ((20, 200), (20, 500), (50, 1000))
"""For each pair of components, and by the average."""


def ways(items):
    """Methods and candidates to compare on a catalogue of so many items."""
    yield "brute-force", None
    yield "two-pass", None
    for method, counts in (("average", CANDIDATES), ("per-embedding", PER_PAIR)):
        yield from ((method, count) for count in counts if count < items)
    yield from (("combined", counts) for counts in BOTH if counts[1] < items)


def examine(catalogue, queries, seen, wanted, threads=None):
    """By method and candidates: set recall, hits, and the parts of results proven and of items scored.

    queries (b, D), the items that each has seen, and (b,) the one that each took next.
    """
    found, truth = {}, None
    for method, candidates in ways(len(catalogue)):
        given = {} if candidates is None else {"candidates": candidates}
        best = catalogue.top_k(queries, K, method=method, exclude=seen, threads=threads, **given)
        truth = best.ids if truth is None else truth
        common = [len(np.intersect1d(mine, right)) for mine, right in zip(best.ids, truth, strict=True)]
        found[method, candidates] = {
            "recall": np.mean(common) / K,
            "hits": (best.ids[:, :BEST] == np.asarray(wanted)[:, None]).any(axis=1).mean(),
            "proven": best.proven.mean(),
            "scored": np.mean(best.items_scored) / len(catalogue),
        }
    return found


def publish(found, title, section, page):
    """Print the table, and put it between the marks of the section in the page."""
    columns = ["method", "candidates", f"set recall@{K}", f"HR@{BEST}", "results proven", "items scored"]
    rows = []
    for (method, candidates), one in found.items():
        pair = isinstance(candidates, tuple)
        count = "" if candidates is None else " and ".join(map(str, candidates)) if pair else str(candidates)
        figures = [f"{one['recall']:.4f}", f"{one['hits']:.4f}", f"{one['proven']:.1%}", f"{one['scored']:.1%}"]
        rows.append([method, count, *figures])
    table = Table(title, columns, rows).markdown()
    print(table)
    if page is not None:
        place(page, section, f"\n{table}\n")
