"""What a method is: how the mass of a cell is estimated before one is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softindex.errors import MethodError
from softindex.kernels import rounding
from softindex.records import Doubles, Floats, Moments

__all__ = ["LAWS", "METHODS", "TOP_K", "Law", "check_estimates", "find_law", "law_offset", "log_partition_slack"]


@dataclass(frozen=True, slots=True)
class Law:
    """A choice of terms in log mass = q.mean / t + offset + q' S q / (2 t^2).

    kind: "estimated" by these terms; "exhaustive": no estimate but the sum over the cell's items, by scanning them all.
    size: the offset is the log of the cell's size; otherwise all cells that hold anything count alike.
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
        Law("2ls"),
        Law("s-2ls", size=True),
        Law("sd-2ls", size=True, dispersion=True),
    )
}


TOP_K = "top-k"
"""The softmax of the k best items: a method of `sample` and `log_prob`, but no law over cells."""
METHODS = (*LAWS, TOP_K)


def find_law(method: str, dispersion_kind: str) -> Law:
    """The law of this name, if an index with this kind of dispersion can serve it.

    For the k best items the best estimate there is: it tells how much they leave out.
    """
    law = LAWS.get(method) if isinstance(method, str) else None
    if law is None and isinstance(method, str) and method == TOP_K:
        return LAWS["s-2ls" if dispersion_kind == "none" else "sd-2ls"]
    if law is None:
        raise MethodError(f"there is no method {method!r}; use one of {', '.join(METHODS)}.")
    if law.dispersion and dispersion_kind == "none":
        raise MethodError(
            f"{method} needs the dispersion of the clusters, which this index was built without; "
            "use s-2ls, or build again with dispersion='auto'."
        )
    return law


def check_estimates(method: str) -> None:
    """Refuse a method that estimates no log Z."""
    if isinstance(method, str) and method == TOP_K:
        raise MethodError(f"{TOP_K} leaves items out, and so has no log Z of all; use one of {', '.join(LAWS)}.")


def law_offset(law: Law, moments: Moments) -> Doubles | None:
    """The offset (k,) of each cell; -inf where it is empty, and None for a law that scans everything.

    A law without sizes gives every cell the average size, so that its log Z is on the same scale as the others'.
    """
    if law.exhaustive:
        return None
    if law.size:
        return moments.log_sizes
    held = np.isfinite(moments.log_sizes)
    average = np.logaddexp.reduce(moments.log_sizes[held]) - np.log(held.sum())
    return np.where(held, average, -np.inf)


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
    dots = rounding(queries.shape[1]) * norms * longest / temperature
    bias = 0.0 if log_bias is None else 1e-14 * max(float(log_bias.max()), -float(log_bias.min()))
    return np.asarray(dots + bias + (4 * 87 + 32) * unit + 1e-15 * np.abs(value))
