"""Choose the method to recommend, and say why in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softindex.evaluate.methods import AuditMethod
from softindex.evaluate.numbers import power, short
from softindex.evaluate.results import Row

__all__ = ["recommend"]

AS_FAST = 1.15
"""Methods within this factor of the fastest count as equally fast; the most accurate of them is recommended."""


def recommend(rows: Sequence[Row], tolerance: float) -> tuple[str | None, str]:
    """The fastest method whose total variation is within the tolerance at every temperature, and a sentence on it.

    The upper end of the 95 % interval must be within the tolerance.  The method is None where none qualifies.
    """
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    errors = {name: max(row.total_variation.high for row in group) for name, group in by_method.items()}
    close = {name: group for name, group in by_method.items() if errors[name] <= tolerance}
    if not close:
        name = min(errors, key=errors.__getitem__)
        return None, (
            f"none of these methods is within a total variation of {tolerance:g} at every temperature; the closest, "
            f"{_phrase(name)}, is {short(max(row.total_variation.value for row in by_method[name]))} off"
            + ("." if "exact" in by_method else ": audit certified or exact too.")
        )
    costs = {name: float(np.mean([np.log(row.microseconds.value) for row in group])) for name, group in close.items()}
    fastest = min(costs.values())
    name = min((name for name, cost in costs.items() if cost <= fastest + np.log(AS_FAST)), key=errors.__getitem__)
    return name, f"{_phrase(name)}: {_reason(name, close[name], tolerance)}."


def _reason(name: str, rows: Sequence[Row], tolerance: float) -> str:
    """The error and the speed to expect, at the worst temperature."""
    if name == "exact":
        return f"no other method is both faster and within a total variation of {tolerance:g}"
    speeds = [f"{row.speedup:.1f}" if row.speedup < 10 else f"{row.speedup:,.0f}" for row in rows]
    slowest, fastest = (pick(zip([row.speedup for row in rows], speeds, strict=True))[1] for pick in (min, max))
    speed = slowest if slowest == fastest else f"{slowest} to {fastest}"
    if max(row.speedup for row in rows) < 1:
        return f"within a total variation of {tolerance:g}, but exact is faster here"
    if rows[0].proven:
        return f"the exact softmax, at {speed} times the speed of exact"
    kl, variation = max(row.kl.value for row in rows), max(row.total_variation.value for row in rows)
    error = f"KL {power(kl, 1, up=True)} and total variation {power(variation, 1, up=True)}"
    return f"{error}{' at most' if len(rows) > 1 else ''}, at {speed} times the speed of exact"


def _phrase(spec: str) -> str:
    return AuditMethod.parse(spec).phrase
