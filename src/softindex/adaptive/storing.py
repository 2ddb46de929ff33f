"""A layer as the arrays that are saved, and back."""

from __future__ import annotations

import numpy as np

from softindex.adaptive.conformal import Calibration
from softindex.adaptive.layer import Layer
from softindex.adaptive.rows import Rows
from softindex.adaptive.screen import Screen, screen_shape
from softindex.fields import ADAPTIVE, damaged, whole_number
from softindex.records import Stored

__all__ = ["from_arrays", "to_arrays"]


def to_arrays(layer: Layer, calibration: Calibration | None) -> Stored:
    """What to save."""
    rows = layer.rows
    arrays = {"weights": rows.array, "bias": layer.bias, "log_bias": layer.log_bias, **layer.screen.arrays()}
    if calibration is not None:
        arrays["calibration"] = calibration.ratios
    return Stored(ADAPTIVE.kind, {"seed": layer.seed, "n": rows.n, "d": rows.d}, arrays, ADAPTIVE.version)


def from_arrays(stored: Stored) -> tuple[Layer, Calibration | None]:
    """The layer that was saved; CorruptIndexError where arrays or parameters are missing or do not fit."""
    arrays, calibration = stored.arrays, None
    n, d = (whole_number(stored.parameters, name, 1) for name in ("n", "d"))
    levels, width = screen_shape(d)
    groups = {"four bits": levels > 1, "calibration": "calibration" in arrays}
    sizes = {"n": n, "d": d, "h": width, "l": levels}
    ADAPTIVE.check(stored, sizes, [name for name, present in groups.items() if present])
    if "calibration" in arrays:
        if arrays["calibration"].size == 0:
            raise damaged("calibration is empty")
        calibration = Calibration(np.asarray(arrays["calibration"]))
    # Files of format version 1 have no log_bias.
    log_bias = arrays.get("log_bias", np.zeros(n, np.float32))
    seed = whole_number(stored.parameters, "seed")
    return Layer(Rows(arrays["weights"]), arrays["bias"], log_bias, Screen.from_arrays(arrays), seed), calibration
