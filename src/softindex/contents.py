"""What an index holds: its arrays by the names they are stored under, its ids and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.calibration import PREFIX, Calibration
from softindex.fields import INDEX, check_choices, is_small, whole_number
from softindex.id_checks import check_id_map
from softindex.ids import IdMap, id_map_from_arrays
from softindex.kernels import Engine, Guard, preferred_target
from softindex.records import Json, Stored
from softindex.statements import check_clusters, check_items
from softindex.store import check_guards

__all__ = ["Contents", "from_stored", "make_engine", "to_stored"]

LAZY = {"vectors", "code_values", "sketch_values"}
"""Large arrays that are checked where the engine first reads them."""
STATED_SINCE = {"bias": 2, "codes": 2, "tree": 2, "sketch": 3}
"""Format version that began to state each of these parameters; in older files it is False."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "dispersion": ("none", "full", "rank"),
    "ids": ("rows", "integers", "strings"),
    **dict.fromkeys((*STATED_SINCE, "log_bias"), (True, False)),
}


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything an index consists of.  Arrays over items are in cluster order."""

    arrays: Mapping[str, NDArray[Any]]
    """Every array but those of the ids; `fields.INDEX` describes each."""
    ids: IdMap
    parameters: Json
    """How the index was built, and what it holds."""
    calibration: Calibration | None = None
    """Of the stated error, on the caller's queries."""
    version: int = INDEX.version
    """Format version it is saved in."""
    guards: Mapping[str, Guard] = field(default_factory=dict)
    """Of large arrays that are mapped and were not read yet: the engine checks what it reads."""

    def check(self) -> None:
        """CorruptIndexError where a mapped array differs from what was saved; for readers other than the engine."""
        check_guards(self.guards)


def make_engine(contents: Contents) -> Engine:
    """The compiled engine over these arrays; ValueError if their values do not fit together."""
    return Engine(dict(contents.arrays), preferred_target(), dict(contents.guards))


def to_stored(contents: Contents) -> Stored:
    """What is written to disk."""
    parameters, arrays = dict(contents.parameters), {**contents.arrays, **contents.ids.arrays()}
    if contents.calibration is not None:
        parameters["calibration"] = contents.calibration.parameters()
        arrays |= contents.calibration.arrays()
    return Stored(INDEX.kind, parameters, arrays, version=contents.version)


def from_stored(stored: Stored) -> Contents:
    """The contents that were saved; CorruptIndexError where an array is missing or does not fit."""
    # The first files of version 2 do not say whether items have log biases either.
    unstated: dict[str, Any] = {name: False for name, since in STATED_SINCE.items() if stored.version < since}
    unstated["log_bias"] = "log_bias" in stored.arrays
    parameters = {**unstated, **stored.parameters}
    check_choices(parameters, CHOICES)
    # All other arrays are read in full, here or by every call.
    check_guards(stored.guards, stored.guards.keys() - LAZY)
    INDEX.check(stored, _sizes(parameters), _groups(parameters))
    ids = id_map_from_arrays(parameters["ids"], stored.arrays)
    arrays = {name: array for name, array in stored.arrays.items() if not name.startswith(("id_", PREFIX))}
    measured = {name.removeprefix(PREFIX): array for name, array in stored.arrays.items() if name.startswith(PREFIX)}
    about = parameters.pop("calibration", None)
    calibration = None if about is None else Calibration.from_stored(about, measured)
    _check_statements(stored, arrays, ids)
    guards = {name: guard for name, guard in stored.guards.items() if name in LAZY}
    return Contents(arrays, ids, parameters, calibration, stored.version, guards)


def _check_statements(stored: Stored, arrays: Mapping[str, NDArray[Any]], ids: IdMap) -> None:
    """Compare what can be computed again, of arrays whose values are looked at."""

    def seen(*names: str) -> bool:
        return stored.verified or all(is_small(stored.arrays[name]) for name in names if name in stored.arrays)

    with np.errstate(all="ignore"):
        if seen(*ids.arrays()):
            check_id_map(ids)
        if seen("means", "log_bias", "tree_means"):
            check_clusters(arrays)
            if seen("vectors", "code_values"):
                check_items(arrays)


def _sizes(parameters: Json) -> dict[str, int]:
    """Length of every axis that the parameters determine."""
    n, k = whole_number(parameters, "items", 1), whole_number(parameters, "clusters", 1)
    w = whole_number(parameters, "dim", 1) + parameters["bias"]
    sizes = {"n": n, "w": w, "k": k, "k+1": k + 1, "k-1": k - 1, "2k-2": 2 * k - 2, "t": w * (w + 1) // 2}
    sizes |= {"blocks": -(-n // 16), "groups": -(-w // 8), "16": 16, "64": 64, "levels": 9}
    return {**sizes, "r": whole_number(parameters, "rank"), "1": 1, "2": 2}


def _groups(parameters: Json) -> set[str]:
    """Groups of arrays that the parameters ask for; in version 1 the outliers may be missing."""
    kind = parameters["dispersion"]
    groups = {parameters["ids"], f"keyed {parameters['ids']}", kind, "outliers"}
    groups |= {name for name in ("codes", "tree", "log_bias", "sketch") if parameters[name]}
    groups |= {"calibration"} if parameters.get("calibration") is not None else set()
    return groups | {f"tree-{kind}"} if parameters["tree"] else groups
