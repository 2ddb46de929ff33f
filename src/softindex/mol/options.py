"""Checks of the options of a search: method, candidates and gap become a SearchPlan."""

from __future__ import annotations

from typing import Any

import numpy as np

from softindex.arguments import check_count, check_room
from softindex.errors import InputError, MethodError, show
from softindex.mol.plans import Counts, SearchPlan
from softindex.mol.retrieval import METHODS
from softindex.mol.sampling import SAMPLE_METHODS, DrawOptions
from softindex.mol.scorer import QueryBatch
from softindex.mol.snapshot import Snapshot

__all__ = ["DEFAULT_CANDIDATES", "check_available", "check_draws", "check_method", "check_search", "check_slate"]

DEFAULT_CANDIDATES = 500
"""Smallest number of candidates by averages or clusters where the caller gives none."""
AVERAGE_CANDIDATES = 4
"""Candidates by the average for each of the k items, where that is more."""
CLUSTER_CANDIDATES = 20
"""The same by clusters: they cost less to find."""


def check_method(method: Any, methods: tuple[str, ...]) -> str:
    """Return one of the methods."""
    if isinstance(method, str) and method in methods:
        return method
    raise MethodError(f"method is {show(method)}; expected one of {', '.join(methods)}.")


def check_search(snapshot: Snapshot, k: int, method: Any, *, candidates: Any, gap: Any, threads: int) -> SearchPlan:
    """Return the plan of a search for the k best items of a snapshot."""
    n, pairs = snapshot.n, snapshot.spec.pairs
    name = check_method(method, METHODS)
    if name in ("exact", "brute-force", "two-pass"):
        if candidates is not None or gap is not None:
            raise InputError(f"method {name!r} is exact and takes neither candidates nor a gap; leave them out.")
        return SearchPlan(name, k, Counts(), None, threads)
    if name == "clusters" and snapshot.clusters is None and pairs > 1:
        raise InputError("this index was built without clusters; build it again with clusters=, or use another method.")
    accepted = None if gap is None else _check_gap(gap)
    usual = _candidate_counts(k, name, None)
    counts = usual if candidates is None else _candidate_counts(k, name, candidates)
    if accepted is not None and candidates is None:
        counts = Counts(*(n if count else 0 for count in usual))
    most = counts.per_pair * pairs + counts.by_average + counts.by_cluster
    if most < k:
        raise InputError(
            f"candidates is {show(candidates)}, which gives at most {most} items, but k is {k}; pass more candidates."
        )
    limited = counts.at_most(Counts(n, n, n))
    start = usual.at_most(limited)
    # The lists of a query may share items: one of them alone must be long enough.
    return SearchPlan(name, k, limited, accepted, threads, start if max(start) >= k else limited)


def check_draws(method: Any, candidates: Any) -> tuple[str, int]:
    """Return the method of a draw, and the number of candidates of "candidates"."""
    name = check_method(method, SAMPLE_METHODS)
    if candidates is not None and name == "exact":
        raise InputError('candidates is for method "candidates" only; leave it out.')
    return name, DEFAULT_CANDIDATES if candidates is None else check_count(candidates, "candidates")


def check_slate(options: DrawOptions, batch: QueryBatch, method: str, candidates: int) -> DrawOptions:
    """Return the options; refuse to draw more different items than are left or than there are candidates."""
    check_available(batch, 1 if options.replace else options.n)
    check_room(len(batch), options.n)
    if not options.replace and method == "candidates" and options.n > candidates:
        raise InputError(
            f"n is {options.n} but there are {candidates} candidates to draw from without replacement; pass more "
            "candidates, or draw fewer."
        )
    return options


def check_available(batch: QueryBatch, count: int) -> None:
    """Refuse to return `count` items where exclusions leave fewer."""
    short = np.flatnonzero(batch.available < count)
    if len(short):
        row = int(short[0])
        raise InputError(
            f"{count} items were requested but {batch.available[row]} are left for query {row}; request at most that "
            "many."
        )


def _check_gap(gap: Any) -> float:
    number = isinstance(gap, (float, int, np.floating, np.integer)) and not isinstance(gap, bool)
    # An int of hundreds of digits does not fit a float.
    if not number or not 0 <= gap < 1e300:
        raise InputError(f"gap is {show(gap)}; expected one number of at least 0.")
    return float(gap)


def _candidate_counts(k: int, method: str, candidates: Any) -> Counts:
    """The numbers of candidates of an approximate method; None for the usual ones."""
    if isinstance(candidates, (tuple, list)):
        if method != "combined" or len(candidates) != 2:
            raise InputError(
                f"candidates is {show(candidates)}; expected one number, or a pair of numbers for method 'combined'."
            )
        return Counts(*(check_count(count, "candidates") for count in candidates))
    given = None if candidates is None else check_count(candidates, "candidates")
    if method == "per-embedding":
        return Counts(per_pair=given or k)
    if method == "clusters":
        return Counts(by_cluster=given or max(DEFAULT_CANDIDATES, CLUSTER_CANDIDATES * k))
    by_average = given or max(DEFAULT_CANDIDATES, AVERAGE_CANDIDATES * k)
    if method == "average":
        return Counts(by_average=by_average)
    return Counts(given or max(1, k // 10), by_average)
