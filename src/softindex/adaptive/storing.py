"""A layer as the arrays that are saved, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softindex.adaptive.conformal import Answers, Calibration, Question
from softindex.adaptive.layer import Layer
from softindex.adaptive.rows import Rows
from softindex.adaptive.screen import Screen, screen_shape
from softindex.fields import ADAPTIVE, damaged, is_small, whole_number
from softindex.records import Doubles, Stored

__all__ = ["from_arrays", "to_arrays"]

LAZY = {"weights", "codes_4", "codes_8"}
"""Large arrays that are checked when the layer is first used."""
CHECKED_VALUES = 1 << 18
"""Values compared at a time."""
SLACK = 1e-9
"""Relative difference allowed: bounds are rounded up, but sums in another order round differently."""
LONGEST = 1.001e15
"""Rows that are longer are refused."""


def to_arrays(layer: Layer, calibration: Calibration | None) -> Stored:
    """What to save."""
    rows = layer.rows
    arrays = {"weights": rows.array, "bias": layer.bias, "log_bias": layer.log_bias, **layer.screen.arrays()}
    parameters: dict[str, Any] = {"seed": layer.seed, "n": rows.n, "d": rows.d}
    if calibration is not None:
        arrays["calibration"] = calibration.ratios
        if calibration.answers is not None:
            arrays["calibration_answers"] = calibration.answers.fractions
            parameters["question"] = calibration.answers.question._asdict()
    return Stored(ADAPTIVE.kind, parameters, arrays, ADAPTIVE.version_of(arrays))


def from_arrays(stored: Stored) -> tuple[Layer, Calibration | None]:
    """The layer that was saved; CorruptIndexError where arrays or parameters are missing or do not fit."""
    arrays, calibration = stored.arrays, None
    n, d = (whole_number(stored.parameters, name, 1) for name in ("n", "d"))
    levels, width = screen_shape(d)
    kept = "calibration" in arrays
    groups = {"four bits": levels > 1, "calibration": kept, "answers": kept and "calibration_answers" in arrays}
    sizes = {"n": n, "d": d, "h": width, "l": levels}
    ADAPTIVE.check(stored, sizes, [name for name, present in groups.items() if present])
    if "calibration" in arrays:
        if arrays["calibration"].size == 0:
            raise damaged("calibration is empty")
        calibration = Calibration(np.asarray(arrays["calibration"]), _answers(stored, n))
    # Files of format version 1 have no log_bias.
    log_bias = arrays.get("log_bias", np.zeros(n, np.float32))
    rows, screen = Rows(arrays["weights"]), Screen.from_arrays(arrays)
    if stored.verified or is_small(rows.array):
        with np.errstate(all="ignore"):
            _check_rows(rows, screen)
    seed = whole_number(stored.parameters, "seed")
    return Layer(rows, arrays["bias"], log_bias, screen, seed), calibration


def _answers(stored: Stored, n: int) -> Answers | None:
    if "calibration_answers" not in stored.arrays:
        return None
    asked = stored.parameters.get("question")
    if not isinstance(asked, dict) or asked.keys() != set(Question._fields):
        raise damaged("it does not say what answers were calibrated for")
    epsilon, temperature = asked["epsilon"], asked["temperature"]
    if not all(type(value) is float and 0.0 < value < math.inf for value in (epsilon, temperature)):
        raise damaged("answers were calibrated for numbers that are not allowed")
    question = Question(whole_number(asked, "k", 1), epsilon, temperature)
    return Answers(question, np.asarray(stored.arrays["calibration_answers"]))


def _check_rows(rows: Rows, screen: Screen) -> None:
    """Compare the lengths and the coded copies with the rows that they are of."""
    for begin, block in rows.blocks(CHECKED_VALUES):
        here = slice(begin, begin + len(block))
        if not (_norms(block.astype(np.float64)) <= LONGEST).all():
            raise damaged("weights are longer than any that are accepted")
        wide = block.astype(np.float64) / screen.columns
        if not (_norms(wide) <= screen.lengths[here] * (1 + SLACK)).all():
            raise damaged("lengths are not those of the weights")
        for level in screen.levels:
            decoded = level.integers(here, rows.d) * level.scales[here, None].astype(np.float64)
            if not (_norms(wide - decoded) <= level.errors[here] * (1 + SLACK)).all():
                raise damaged(f"codes_{level.bits} are not those of the weights")


def _norms(rows: Doubles) -> Doubles:
    return np.asarray(np.sqrt(np.einsum("nd,nd->n", rows, rows)))
