"""Format measured numbers for tables, plots and sentences."""

from __future__ import annotations

import math

__all__ = ["power", "short"]


def short(value: float) -> str:
    """Two significant digits: plain from 0.01 to a million, with a power of ten elsewhere."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞"
    size = abs(value)
    if 10 <= size < 999_999.5:
        return f"{value:,.0f}"
    if 0.00995 <= size < 10:
        places = 1 if size >= 0.995 else 2 if size >= 0.0995 else 3
        return f"{value:.{places}f}"
    return power(value, 2)


def power(value: float, digits: int, *, up: bool = False) -> str:
    """This many digits and a power of ten, as in 8e-4; `up` rounds away from zero."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞"
    exponent = math.floor(math.log10(abs(value)))
    scaled = value / 10.0**exponent * 10 ** (digits - 1)
    mantissa = math.ceil(scaled - 1e-9) if up else round(scaled)
    if mantissa >= 10**digits:
        mantissa, exponent = mantissa // 10, exponent + 1
    text = str(mantissa)
    return f"{text[0]}{'.' + text[1:] if digits > 1 else ''}e{exponent}"
