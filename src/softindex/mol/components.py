"""Judge components and gates at the door: shapes, finite numbers, and lengths of one where they must be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import as_array
from softindex.errors import InputError
from softindex.mol.form import Form, ItemSide
from softindex.records import Floats

__all__ = ["check_components", "check_item_side"]

LENGTH_TOLERANCE = 1e-3
"""How far from one the length of a normalised component may be: float16 is off by that much."""
MAX_VALUE = 1e6
"""Of gates and of components that are not normalised: dot products and gates must not overflow float32."""


def check_components(values: NDArray[Any], parts: int, form: Form, what: str, first: int = 0) -> Floats:
    """Return components (m, parts, d) as float32, C-contiguous.

    what: "query" or "item", and first: the number of the first of them, for the sentence.
    """
    d = form.component_dim
    if values.ndim != 3 or values.shape[1:] != (parts, d):
        raise InputError(
            f"components of the {what} side have shape {values.shape}; expected (m, {parts}, {d}): pass a batch, "
            "encoded with the same model."
        )
    if values.dtype.kind not in "fiu":
        raise InputError(f"components of the {what} side are {values.dtype}; expected floats.")
    with np.errstate(over="ignore"):
        components = np.ascontiguousarray(values, np.float32)
    bad = ~(np.abs(components) <= MAX_VALUE)
    if bad.any():
        row = first + int(np.argwhere(bad)[0][0])
        raise InputError(f"{what} {row} has a component with NaN, infinity or a number above {MAX_VALUE:.0e}; mend it.")
    if form.normalised:
        lengths = np.sqrt(np.einsum("mpd,mpd->mp", components, components, dtype=np.float64))
        # A component of zeros comes from an item about which nothing is known.
        wrong = (np.abs(lengths - 1) > LENGTH_TOLERANCE) & (lengths > 0)
        if wrong.any():
            row, part = (int(place) for place in np.argwhere(wrong)[0])
            raise InputError(
                f"component {part} of {what} {first + row} has length {lengths[row, part]:.4g}; expected 1: divide "
                "components by their length."
            )
    return components


def check_item_side(form: Form, made: Any, m: int | None = None, first: int = 0) -> tuple[Floats, Floats | None]:
    """Components (m, P_x, d) and gates (m, P) of m items, or None where the form has no item gates.

    m: how many there must be, where that is known; first: the number of the first of them.
    """
    if not isinstance(made, ItemSide):
        raise InputError(f"item_side of the similarity gave a {type(made).__name__}; return a softindex.mol.ItemSide.")
    components = check_components(as_array(made.components, "components"), form.item_components, form, "item", first)
    if m is None:
        m = len(components)
    if len(components) != m:
        raise InputError(f"the similarity made components of {len(components)} items out of {m}; return one for each.")
    if (made.gates is not None) != form.item_gates:
        raise InputError(
            "the similarity's form and its items disagree on gates; return gates exactly where it has them."
        )
    if made.gates is None:
        return components, None
    gates = as_array(made.gates, "gates")
    if gates.shape != (m, form.pairs):
        raise InputError(f"gates have shape {gates.shape}; expected ({m}, {form.pairs}), one for each pair.")
    if gates.dtype.kind not in "fiu":
        raise InputError(f"gates are {gates.dtype}; expected floats.")
    with np.errstate(over="ignore"):
        gates = np.ascontiguousarray(gates, np.float32)
    if not (np.abs(gates) <= MAX_VALUE).all():
        raise InputError(f"a gate is NaN, infinite or above {MAX_VALUE:.0e}; mend the item or the model.")
    return components, gates
