"""The methods by name, and the law of each: how the mass of a cluster is computed before one is drawn.

A law is a probability distribution over the items.  All of them draw exactly inside a cluster and differ in the mass
they give it.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import numpy as np

from softindex.arguments import check_confidence, check_positive
from softindex.errors import InputError, MethodError, show
from softindex.kernels import Law

__all__ = [
    "ADAPTIVE",
    "CERTIFIED",
    "EXACT",
    "FLAT_METHODS",
    "LAWS",
    "METHODS",
    "PROVEN_METHODS",
    "TOLERANCE",
    "TOP_K",
    "TREE_METHODS",
    "WIDTH",
    "Law",
    "Method",
    "check_probes",
    "check_tolerance",
    "find_bounds",
    "find_law",
    "scanned_law",
]

Method = Literal[
    "exact", "certified", "2ls", "s-2ls", "sd-2ls", "hierarchical", "s-hierarchical", "sd-hierarchical", "top-k"
]
METHODS: tuple[str, ...] = get_args(Method)

ADAPTIVE = -1
"""To the engine: as many probes as the answer needs."""
TOLERANCE = 0.03
"""The total variation at which adaptive probing stops; see docs/guarantees.md for how it was chosen."""
WIDTH = 0.03
"""Nats between the bounds of log Z at which scanning stops."""

LAWS: dict[str, Law] = {
    "exact": Law("exhaustive"),
    "certified": Law("certified", size=True, dispersion=True),
    "2ls": Law("estimated"),
    "s-2ls": Law("estimated", size=True),
    "sd-2ls": Law("estimated", size=True, dispersion=True),
    "hierarchical": Law("tree"),
    "s-hierarchical": Law("tree", size=True),
    "sd-hierarchical": Law("tree", size=True, dispersion=True),
}
"""log mass = q.mean / t + log size + q' S q / (2 t^2), where `size` and `dispersion` say whether the last two terms
are used.  A law without sizes gives every cluster the average size.  The kind says where the mass comes from:
"estimated" from these terms; "exhaustive" from a scan of every item; "certified" from a scan of the clusters that
bounds leave open; "tree" from a walk down the tree, with a softmax of these terms of the two children at each node."""
TREE_METHODS = tuple(name for name, law in LAWS.items() if law.kind == "tree")
FLAT_METHODS = tuple(name for name in LAWS if name not in TREE_METHODS)
"""The methods that every index serves (if it keeps the dispersion they need)."""

EXACT: Final = "exact"
CERTIFIED: Final = "certified"
PROVEN_METHODS = (EXACT, CERTIFIED)
"""The methods whose log Z has proven bounds."""
TOP_K: Final = "top-k"
"""The softmax of the k best items: a method of `sample` and `log_prob`, but no law over clusters."""
CERTIFIED_BY_RADII = Law("certified", size=True)
"""Without dispersion the radius of a cluster bounds its spread too, only less well."""


def find_law(method: Any, dispersion_kind: str, has_tree: bool) -> Law:
    """Return the law of a method, if an index with this kind of dispersion, and with a tree or not, serves it.

    For the k best items that is the best estimate available: it says how much they leave out.
    """
    law = LAWS.get(method) if isinstance(method, str) else None
    if law is None and isinstance(method, str) and method == TOP_K:
        return LAWS["s-2ls" if dispersion_kind == "none" else "sd-2ls"]
    if law is None:
        raise MethodError(f"there is no method {show(method)}; use one of {', '.join(METHODS)}.")
    if law.kind == "tree" and not has_tree:
        raise MethodError(
            f"{method} needs a tree over the clusters, which this index was built without; "
            f"use one of {', '.join(FLAT_METHODS)}, or build again with tree=True."
        )
    if law.kind == "certified" and dispersion_kind == "none":
        return CERTIFIED_BY_RADII
    if law.dispersion and dispersion_kind == "none":
        raise MethodError(
            f"{method} needs the dispersion of the clusters, which this index was built without; "
            f"use {method.replace('sd-', 's-')}, or build again with dispersion='auto'."
        )
    return law


def check_probes(probes: Any, tolerance: Any, method: str, clusters: int) -> tuple[int, float]:
    """Return the number of clusters to scan before drawing (ADAPTIVE where None) and the tolerance, for the engine.

    A law that estimates nothing has nothing to probe: None and 0 mean the same to it.  The k best items cannot be
    searched in no cluster at all.
    """
    error = TOLERANCE if tolerance is None else check_tolerance(tolerance)
    if method != TOP_K and LAWS[method].kind != "estimated":
        if probes is None or (type(probes) is int and probes == 0):
            return 0, error
        raise InputError(
            f"probes is {show(probes)} but {method} takes none, as its masses are not estimated; leave probes out."
        )
    if probes is None:
        return ADAPTIVE, error
    least, meaning = (1, "") if method == TOP_K else (0, " (the published law)")
    if isinstance(probes, (int, np.integer)) and not isinstance(probes, bool) and least <= probes <= clusters:
        return int(probes), error
    raise InputError(
        f"probes is {show(probes)}; expected an integer from {least}{meaning} to the number of clusters, {clusters}, "
        "or None to scan as many as the answer needs."
    )


def check_tolerance(tolerance: Any) -> float:
    """Return the tolerance as a float above 0."""
    return check_positive(tolerance, "tolerance", TOLERANCE)


def scanned_law(method: str, law: Law) -> Law:
    """The law with the mass of every cluster: certified draws know only some of them, and are draws of "exact"."""
    return LAWS[EXACT] if method == CERTIFIED else law


def find_bounds(method: str, *, probes: Any, tolerance: Any, width: Any, confidence: Any) -> tuple[float, float] | None:
    """Return width and confidence (1 where they are proven) of the bounds that a log Z gets by scanning; None if none.

    Options that would have no effect are refused.
    """
    if method in TREE_METHODS:
        raise MethodError(
            f"{method} chooses between parts of a tree and does not estimate log Z; "
            f"use one of {', '.join(FLAT_METHODS)}."
        )
    if method == TOP_K:
        raise MethodError(
            f"{TOP_K} leaves items out, and so has no log Z of all items; use one of {', '.join(FLAT_METHODS)}."
        )
    if confidence is not None and method not in (CERTIFIED, "sd-2ls"):
        raise MethodError(
            f"confidence comes from bounds on the clusters, which {method} does not use; use {CERTIFIED}."
        )
    bounded = method == CERTIFIED or confidence is not None
    if tolerance is not None and (bounded or method == EXACT):
        raise InputError("tolerance is for methods that probe; leave it out, or use width for the bounds of log Z.")
    if not bounded:
        if width is not None:
            raise InputError(f"width is for bounds, which {method} does not compute; use {CERTIFIED}, or leave it out.")
        return None
    if confidence is not None and probes is not None:
        raise InputError("probes has no effect together with confidence; leave one of them out.")
    return (
        WIDTH if width is None else check_positive(width, "width", WIDTH),
        1.0 if confidence is None else check_confidence(confidence),
    )
