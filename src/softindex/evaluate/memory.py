"""How much of an index a draw may read."""

from __future__ import annotations

from typing import Any

from softindex.index import Index
from softindex.laws import CERTIFIED, LAWS

__all__ = ["draw_bytes"]


def draw_bytes(index: Index, method: str) -> int:
    """Bytes of the arrays that a draw by this method may read."""
    # The only place in this package that looks inside an index: the sizes of these arrays are stated nowhere else.
    contents = index._contents
    moments, tree, codes = contents.moments, contents.tree, contents.codes
    law = LAWS.get(method, LAWS["sd-2ls"])
    arrays: list[Any] = [contents.vectors, contents.offsets, contents.log_bias]
    dispersion = moments.dispersion
    if law.kind == "tree" and tree is not None:
        arrays += [tree.children, tree.means, tree.log_sizes]
        dispersion = tree.dispersion
    elif law.kind != "exhaustive":
        arrays += [moments.means, moments.log_sizes, moments.radii, moments.norm_max, moments.norm_min]
        arrays += [moments.min_cosine, moments.reach]
        if contents.outliers is not None:
            arrays += [contents.outliers.positions, contents.outliers.vectors]
    if law.dispersion:
        arrays += [dispersion.forms, dispersion.scales, dispersion.spread, dispersion.excess]
    if method == CERTIFIED and codes is not None:
        arrays += [codes.values, codes.scales, codes.errors, codes.lengths]
    return sum(array.nbytes for array in arrays if array is not None)
