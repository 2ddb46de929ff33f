"""Rounding to float32 outward, so that what is called a bound stays one when it is stored."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["round_down", "round_up"]


def round_up(value: Any) -> Any:
    """Round up to float32, with room for the rounding of the float64 computation itself."""
    wide = np.asarray(value, np.float64) * (1 + 1e-12) + 1e-300
    return np.nextafter(wide.astype(np.float32), np.float32(np.inf))


def round_down(value: Any) -> Any:
    """Round down to float32, not below zero, with the same room."""
    wide = np.asarray(value, np.float64) * (1 - 1e-12)
    return np.maximum(np.nextafter(wide.astype(np.float32), np.float32(-np.inf)), np.float32(0))
