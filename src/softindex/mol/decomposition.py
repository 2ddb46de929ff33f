"""Any matrix of similarities as a mixture of two matrices of low rank: why a mixture of logits can express anything."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softindex.arguments import as_array, check_count
from softindex.errors import InputError, show
from softindex.records import Doubles

__all__ = ["Decomposition", "decompose"]


class Decomposition(NamedTuple):
    """weights * first + (1 - weights) * second, entry by entry, is the matrix."""

    weights: Doubles
    """(n, m) from 0 to 1."""
    first: Doubles
    """(n, m) of at most the asked rank."""
    second: Doubles
    """(n, m) of at most the asked rank."""

    def matrix(self) -> Doubles:
        """(n, m) the mixture."""
        return np.asarray(self.weights * self.first + (1 - self.weights) * self.second)


def decompose(matrix: Any, rank: int, epsilon: float | None = None) -> Decomposition:
    """Return weights and two matrices of at most this rank whose mixture is within epsilon of matrix (n, m).

    epsilon: of every entry; None: a billionth of the largest.  The weights are a full matrix: this shows that a gate
    that sees enough lets few components express any similarities, and not how to store them in less.

    The best approximation of rank - 1 is lowered and raised by one constant, the largest entry that it misses: every
    entry of the matrix lies between the two, and says by which weights.  Scaling the approximation instead, entry by
    entry, would take a division by its entries, which may be zero where the matrix is not; a constant costs one rank
    and divides by nothing.
    """
    given = as_array(matrix, "matrix")
    if given.ndim != 2 or given.size == 0 or given.dtype.kind not in "fiu" or not np.isfinite(given).all():
        raise InputError("the matrix must have two axes and hold finite numbers; pass an array (n, m).")
    wide, allowed = given.astype(np.float64), check_count(rank, "rank")
    if epsilon is None:
        epsilon = 1e-9 * max(float(np.abs(wide).max()), np.finfo(np.float64).tiny)
    if isinstance(epsilon, bool) or not isinstance(epsilon, (float, int, np.floating)) or not epsilon > 0:
        raise InputError(f"epsilon is {show(epsilon)}; expected one number above 0.")
    with np.errstate(over="ignore", invalid="ignore"):
        left, values, right = np.linalg.svd(wide, full_matrices=False)
        middle = (left[:, : allowed - 1] * values[: allowed - 1]) @ right[: allowed - 1]
        half = float(np.abs(wide - middle).max())
        first, second = middle - half, middle + half
        weights = np.clip((second - wide) / (2 * half), 0.0, 1.0) if half > 0 else np.ones_like(wide)
        made = Decomposition(weights, first, second)
        missed = float(np.abs(made.matrix() - wide).max())
    if not missed < epsilon:
        raise InputError(
            f"float64 misses this matrix by {missed:.3g}, not within {epsilon:.3g}; raise epsilon or rescale it."
        )
    return made
