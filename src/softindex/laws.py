"""What a method is: how the mass of a cluster is estimated before one is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softindex.errors import InputError, MethodError, show
from softindex.kernels import dot_error
from softindex.records import Doubles, Floats, Moments, Tree

__all__ = [
    "ADAPTIVE",
    "CERTIFIED",
    "FLAT_METHODS",
    "LAWS",
    "METHODS",
    "TOLERANCE",
    "TOP_K",
    "TREE_METHODS",
    "Law",
    "check_confidence",
    "check_estimates",
    "check_probes",
    "check_tolerance",
    "find_law",
    "law_offset",
    "log_partition_slack",
    "tree_offset",
]

ADAPTIVE = -1
"""To the kernels: as many probes as the tolerance asks for."""
TOLERANCE = 0.03
"""The total variation at which adaptive probing stops; see docs/guarantees.md for how it was chosen."""


@dataclass(frozen=True, slots=True)
class Law:
    """A choice of terms in log mass = q.mean / t + offset + q' S q / (2 t^2).

    kind: "estimated" by these terms; "exhaustive": no estimate but the sum over the cluster's items, by scanning them all;
        "certified": the same, but only of clusters that bounds on their mass do not settle;
        "tree": by a walk down the tree over the clusters, with a softmax of these terms of the two children at each node.
    size: the offset is the log of the cluster's size; otherwise all clusters that hold anything count alike.
    dispersion: the last term is added.
    """

    name: str
    kind: str = "estimated"
    size: bool = False
    dispersion: bool = False

    @property
    def exhaustive(self) -> bool:
        """Every item is scored."""
        return self.kind == "exhaustive"


LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        Law("exact", kind="exhaustive"),
        Law("certified", kind="certified", size=True, dispersion=True),
        Law("2ls"),
        Law("s-2ls", size=True),
        Law("sd-2ls", size=True, dispersion=True),
        Law("hierarchical", kind="tree"),
        Law("s-hierarchical", kind="tree", size=True),
        Law("sd-hierarchical", kind="tree", size=True, dispersion=True),
    )
}
TREE_METHODS = tuple(law.name for law in LAWS.values() if law.kind == "tree")
FLAT_METHODS = tuple(law.name for law in LAWS.values() if law.kind != "tree")
"""Those that every index serves (if it keeps the dispersion they need)."""


CERTIFIED = "certified"
TOP_K = "top-k"
"""The softmax of the k best items: a method of `sample` and `log_prob`, but no law over clusters."""
METHODS = (*LAWS, TOP_K)


def find_law(method: str, dispersion_kind: str, has_tree: bool) -> Law:
    """The law of this name, if an index with this kind of dispersion, and with a tree or not, can serve it.

    For the k best items the best estimate there is: it tells how much they leave out.
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
        # The radius bounds the spread too, only less well.
        return replace(law, dispersion=False)
    if law.dispersion and dispersion_kind == "none":
        raise MethodError(
            f"{method} needs the dispersion of the clusters, which this index was built without; "
            f"use {method.replace('sd-', 's-')}, or build again with dispersion='auto'."
        )
    return law


def check_probes(probes: Any, tolerance: Any, method: str, clusters: int) -> tuple[int, float]:
    """Return the number of clusters to scan before drawing (ADAPTIVE where None) and the tolerance, for the kernels.

    A law that estimates nothing has nothing to probe: None and 0 mean the same to it.  The k best items cannot be
    looked for in no cluster at all.
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


def check_confidence(confidence: Any, method: str) -> float:
    """Return the confidence as a float within (0, 1); None, which asks for certainty, is 1."""
    if confidence is None:
        return 1.0
    if method not in (CERTIFIED, "sd-2ls"):
        raise MethodError(
            f"confidence comes from bounds on the clusters, which {method} does not use; use {CERTIFIED}."
        )
    if isinstance(confidence, (float, np.floating)) and 0.0 < confidence < 1.0:
        return float(confidence)
    raise InputError(f"confidence is {show(confidence)}; expected a number between 0 and 1, such as 0.95.")


def check_tolerance(tolerance: Any) -> float:
    """Return the tolerance as a float above 0."""
    number = isinstance(tolerance, (int, float, np.integer, np.floating)) and not isinstance(tolerance, bool)
    # An int of hundreds of digits is no float.
    if number and 0.0 < tolerance < 1e300:
        return float(tolerance)
    raise InputError(f"tolerance is {show(tolerance)}; expected a number above 0, such as {TOLERANCE}.")


def check_estimates(method: str) -> None:
    """Refuse a method that estimates no log Z."""
    law = LAWS.get(method) if isinstance(method, str) else None
    if law is not None and law.kind == "tree":
        raise MethodError(
            f"{method} chooses between parts of a tree and does not estimate log Z; "
            f"use one of {', '.join(FLAT_METHODS)}."
        )
    if isinstance(method, str) and method == TOP_K:
        raise MethodError(
            f"{TOP_K} leaves items out, and so has no log Z of all; use one of {', '.join(FLAT_METHODS)}."
        )


def law_offset(law: Law, moments: Moments) -> Doubles | None:
    """The offset (k,) of each cluster; -inf where it is empty, and None for a law that scans everything.

    A law without sizes gives every cluster the average size, so that its log Z is on the same scale as the others'.
    """
    if law.exhaustive:
        return None
    if law.size:
        return moments.log_sizes
    held = np.isfinite(moments.log_sizes)
    average = np.logaddexp.reduce(moments.log_sizes[held]) - np.log(held.sum())
    return np.where(held, average, -np.inf)


def tree_offset(law: Law, tree: Tree) -> Doubles:
    """The offset (2k - 2,) of each node but the root; -inf where it is empty."""
    return tree.log_sizes if law.size else np.where(np.isfinite(tree.log_sizes), 0.0, -np.inf)


def log_partition_slack(
    queries: Floats, value: Doubles, temperature: float, moments: Moments, log_bias: Floats | None
) -> Doubles:
    """How far the float32 scan's log Z (b,) may lie from the true one, for queries (b, d).

    Each logit is off by the rounding of its dot product, over t, and a few units in the last place of itself; an
    item that counts has a logit within 87 of the largest, and one that does not adds less than exp(-87).
    """
    unit = 2.0**-24
    norms = np.sqrt(np.einsum("bd,bd->b", queries, queries, dtype=np.float64))
    longest = float(moments.norm_max.max())
    dots = dot_error(queries.shape[1]) * norms * longest / temperature
    bias = 0.0 if log_bias is None else 1e-14 * max(float(log_bias.max()), -float(log_bias.min()))
    return np.asarray(dots + bias + (4 * 87 + 32) * unit + 1e-15 * np.abs(value))
