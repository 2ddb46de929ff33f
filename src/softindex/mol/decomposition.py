"""Any similarity matrix as a mixture of two low-rank matrices: why a mixture of logits can express any similarity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from softindex.arguments import as_array, check_count
from softindex.errors import InputError, show
from softindex.records import Doubles

__all__ = ["Decomposition", "decompose"]


class Decomposition(NamedTuple):
    """A matrix as the entrywise mixture weights * first + (1 - weights) * second."""

    weights: Doubles
    """(n, m) from 0 to 1."""
    first: Doubles
    """(n, m) of at most the requested rank."""
    second: Doubles
    """(n, m) of at most the requested rank."""

    def matrix(self) -> Doubles:
        """(n, m) the mixture."""
        return np.asarray(self.weights * self.first + (1 - self.weights) * self.second)


def decompose(matrix: ArrayLike, rank: int, epsilon: float | None = None) -> Decomposition:
    """Return weights and two low-rank matrices whose mixture is within epsilon of the matrix.

    The weights are a full matrix.  So this shows that few components can express any similarity if the gate sees
    enough; it does not compress the matrix.

    Method: take the best approximation of rank - 1, and shift it down and up by one constant, its largest error.
    Every entry of the matrix lies between the two shifted matrices, and its position gives the weight.  The constant
    costs one rank.  Scaling the approximation entry by entry instead would divide by its entries, which may be zero.

    Args:
        matrix: Similarities, (n, m), finite.
        rank: Largest rank of the two matrices, at least 1.
        epsilon: Largest error of an entry; None means 1e-9 times the largest entry.

    Returns:
        The weights and the two matrices, each (n, m) float64.

    Raises:
        InputError: When an argument is invalid, or when float64 cannot reach epsilon.
    """
    given = as_array(matrix, "matrix")
    if given.ndim != 2 or given.size == 0 or given.dtype.kind not in "fiu" or not np.isfinite(given).all():
        raise InputError("matrix must have two axes and finite numbers; pass an array (n, m).")
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
        result = Decomposition(weights, first, second)
        error = float(np.abs(result.matrix() - wide).max())
    if not error < epsilon:
        raise InputError(
            f"float64 misses this matrix by {error:.3g}, more than epsilon {epsilon:.3g}; raise epsilon or rescale "
            "the matrix."
        )
    return result
