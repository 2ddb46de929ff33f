"""The temperature of a call: one for all queries, or one for each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from softindex.arguments import TEMPERATURES, as_array, check_temperature
from softindex.errors import InputError, show
from softindex.records import Doubles

__all__ = ["Temperature", "check_each_temperature", "temperature_of"]

Temperature = float | ArrayLike
"""What a caller may pass: a number, or (b,) numbers, one per query."""


def check_each_temperature(temperature: Any, b: int) -> float | Doubles:
    """Return one temperature for all queries as a float, or one for each as (b,) float64, C-contiguous."""
    if not isinstance(temperature, (list, tuple)) and not getattr(temperature, "ndim", 0):
        return check_temperature(temperature)
    array = as_array(temperature, "temperature")
    if array.dtype.kind not in "fiu" or array.shape != (b,):
        raise InputError(
            f"temperature has shape {array.shape} and type {array.dtype} for {b} queries; expected one number, or "
            f"({b},) numbers, one per query."
        )
    each = np.array(array, np.float64)
    low, high = TEMPERATURES
    wrong = np.flatnonzero(~((each >= low) & (each <= high)))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"temperature of query {row} is {show(float(each[row]))}; expected a number from {low} to {high}."
        )
    return each if b > 1 else float(each[0])


def temperature_of(temperature: float | Doubles, row: int) -> float:
    """The temperature of one query."""
    return temperature if isinstance(temperature, float) else float(temperature[row])
