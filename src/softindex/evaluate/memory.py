"""How much of an index a draw may read."""

from __future__ import annotations

from softindex.fields import INDEX
from softindex.index import Index
from softindex.laws import CERTIFIED, LAWS, TOP_K

__all__ = ["draw_bytes"]

_RESIDUALS = tuple(f"residual_{name}" for name in ("values", "scales", "centres", "lengths", "bias"))
SCANNED = ("vectors", *_RESIDUALS, "offsets", "log_bias")
"""Read by every method that draws inside a cluster.  The vectors of a snapshot or a subset lie in segments."""


def draw_bytes(index: Index, method: str) -> int:
    """Bytes of the arrays that a draw by this method may read."""
    arrays, kind = index._contents.arrays, index.parameters["dispersion"]
    law = LAWS.get(method, LAWS["sd-2ls"])
    total = sum(arrays[name].nbytes for name in SCANNED if name in arrays)
    if "runs" in arrays:
        total += int(arrays["offsets"][-1]) * arrays["means"].shape[1] * 4
    if law.kind == "tree":
        groups = ["tree", f"tree-{kind}"] if law.dispersion else ["tree"]
        return total + INDEX.memory(arrays, groups)
    if law.kind == "exhaustive":
        return total
    clusters = {name: array for name, array in arrays.items() if name not in SCANNED}
    groups = (
        ["", "outliers"] + [kind] * law.dispersion + ["codes"] * (method == CERTIFIED) + ["sketch"] * (method == TOP_K)
    )
    return total + INDEX.memory(clusters, groups)
