"""Checks of components and gates: shapes, finite numbers, and length one where the similarity needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import as_array
from softindex.errors import InputError
from softindex.mol.spec import ItemSide, SimilaritySpec
from softindex.records import Floats

__all__ = ["check_components", "check_item_side"]

LENGTH_TOLERANCE = 1e-3
"""Allowed deviation of a normalised component from length one: float16 is off by this much."""
MAX_VALUE = 1e6
"""Limit on gates and on components that are not normalised: dot products and gates must not overflow float32."""


def check_components(values: NDArray[Any], count: int, spec: SimilaritySpec, side: str, first_row: int = 0) -> Floats:
    """Return components (m, count, d) as float32, C-contiguous.

    side: "query" or "item", and first_row: the number of the first row; both for error messages.
    """
    d = spec.component_dim
    if values.ndim != 3 or values.shape[1:] != (count, d):
        raise InputError(
            f"{side} components have shape {values.shape}; expected (m, {count}, {d}): pass a batch that was encoded "
            "with the same model."
        )
    if values.dtype.kind not in "fiu":
        raise InputError(f"{side} components are {values.dtype}; expected floats: pass a float32 array.")
    with np.errstate(over="ignore"):
        components = np.ascontiguousarray(values, np.float32)
    invalid = ~(np.abs(components) <= MAX_VALUE)
    if invalid.any():
        row = first_row + int(np.argwhere(invalid)[0][0])
        raise InputError(
            f"{side} {row} has a component with NaN, infinity or a number above {MAX_VALUE:.0e}; fix or remove it."
        )
    if spec.normalised:
        lengths = np.sqrt(np.einsum("mpd,mpd->mp", components, components, dtype=np.float64))
        # Zero components are allowed: they come from items about which nothing is known.
        invalid = (np.abs(lengths - 1) > LENGTH_TOLERANCE) & (lengths > 0)
        if invalid.any():
            row, place = (int(index) for index in np.argwhere(invalid)[0])
            raise InputError(
                f"component {place} of {side} {first_row + row} has length {lengths[row, place]:.4g}; expected 1: "
                "divide components by their length."
            )
    return components


def check_item_side(
    spec: SimilaritySpec, side: Any, m: int | None = None, first_row: int = 0
) -> tuple[Floats, Floats | None]:
    """Return components (m, P_x, d) and gates (m, P) of m items; gates are None where the spec has no item gates.

    m: expected number of items, where it is known; first_row: number of the first item, for error messages.
    """
    if not isinstance(side, ItemSide):
        raise InputError(
            f"item_side of the similarity returned a {type(side).__name__}; return a softindex.mol.ItemSide."
        )
    components = check_components(
        as_array(side.components, "components"), spec.item_components, spec, "item", first_row
    )
    if m is None:
        m = len(components)
    if len(components) != m:
        raise InputError(
            f"item_side of the similarity returned components of {len(components)} items for {m}; return one row per "
            "item."
        )
    if (side.gates is not None) != spec.item_gates:
        has, but = ("has gates", "False") if side.gates is not None else ("has no gates", "True")
        raise InputError(f"the item side {has} but item_gates of the spec is {but}; make them agree.")
    return components, None if side.gates is None else _check_gates(side.gates, m, spec.pairs)


def _check_gates(values: Any, m: int, pairs: int) -> Floats:
    gates = as_array(values, "gates")
    if gates.shape != (m, pairs):
        raise InputError(f"gates have shape {gates.shape}; expected ({m}, {pairs}), one number per item and pair.")
    if gates.dtype.kind not in "fiu":
        raise InputError(f"gates are {gates.dtype}; expected floats: pass a float32 array.")
    with np.errstate(over="ignore"):
        gates = np.ascontiguousarray(gates, np.float32)
    if not (np.abs(gates) <= MAX_VALUE).all():
        raise InputError(f"a gate is NaN, infinite or above {MAX_VALUE:.0e}; fix the item or the model.")
    return gates
