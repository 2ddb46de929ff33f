"""What an index holds: its arrays by the names they are stored under, its ids and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.calibration import PREFIX, Calibration
from softindex.errors import InputError, show
from softindex.fields import INDEX, check_choices, damaged, is_small, whole_number
from softindex.id_checks import check_id_map
from softindex.ids import IdMap, id_map_from_arrays
from softindex.kernels import Engine, Guard, preferred_target
from softindex.records import Floats, Integers, Items, Json, Stored
from softindex.residuals import STORAGES, Decoded, stored_vectors
from softindex.statements import check_clusters, check_items
from softindex.store import check_guards

__all__ = ["Contents", "from_stored", "gather", "make_engine", "to_stored"]

MOST_CUTS = 4096
"""Stretches of positions that are copied one by one."""

SUBSET = "subset."
"""Of the names of the arrays of subsets: one each, numbered."""
LAZY = {"vectors", "residual_values", "code_values", "sketch_values"}
"""Large arrays that are checked where the engine first reads them."""
STATED_SINCE = {"bias": 2, "codes": 2, "tree": 2, "sketch": 3}
"""Format version that began to state each of these parameters; in older files it is False."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "dispersion": ("none", "full", "rank"),
    "ids": ("rows", "integers", "strings"),
    "storage": STORAGES,
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
    snapshot: int | None = None
    """Number of the state of a `LiveIndex` that this is, or is a part of."""
    settle: Callable[[], Contents] | None = None
    """Makes contents that can be saved, where these cannot: the vectors of a snapshot or a subset lie in several
    arrays, "segment.0" and so on, by the table "runs" (m, 3) of first position, segment and row; "removed" (m,) are the
    positions of items that are gone; clusters from "first_known" (1,) on are scanned in every call."""

    subsets: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    """Subsets that are saved with the index, by name: a bit per item, in the order of `positions`."""

    def named(self, name: str) -> NDArray[np.bool_]:
        """(n,) which items, in the order of `positions`, the subset of this name holds."""
        if name not in self.subsets:
            known = ", ".join(map(show, self.subsets)) or "none"
            raise InputError(f"there is no subset {show(name)} in this index; it has {known}.")
        return np.unpackbits(self.subsets[name], count=len(self)).astype(bool)

    def check(self) -> None:
        """CorruptIndexError where a mapped array differs from what was saved; for readers other than the engine."""
        check_guards(self.guards)

    def __len__(self) -> int:
        removed = self.arrays.get("removed")
        return int(self.arrays["offsets"][-1]) - (0 if removed is None else len(removed))

    def positions(self) -> Integers:
        """(n,) where the items are, cluster after cluster."""
        everywhere = np.arange(self.arrays["offsets"][-1])
        removed = self.arrays.get("removed")
        return everywhere if removed is None else np.delete(everywhere, removed)

    def select(self, mask: NDArray[np.bool_]) -> Integers:
        """Positions of the items for which a mask (n,), in the order of `positions`, is true."""
        return np.flatnonzero(mask) if self.arrays.get("removed") is None else self.positions()[mask]

    def others(self, positions: Integers) -> Integers:
        """Positions, increasing, of all other items."""
        left = np.ones(int(self.arrays["offsets"][-1]), bool)
        left[positions] = False
        if "removed" in self.arrays:
            left[self.arrays["removed"]] = False
        return np.flatnonzero(left)

    def sizes(self) -> Integers:
        """(k,) items of each cluster."""
        offsets, removed = self.arrays["offsets"], self.arrays.get("removed")
        sizes: Integers = np.diff(offsets)
        return sizes if removed is None else sizes - np.diff(np.searchsorted(removed, offsets))

    def vectors_at(self, positions: Integers) -> Floats:
        """(m, w) a copy of the stored vectors at these positions."""
        self.check()
        runs = self.arrays.get("runs")
        if runs is None:
            vectors = stored_vectors(self.arrays)
            return np.take(vectors, positions, axis=0) if isinstance(vectors, np.ndarray) else vectors[positions]
        last = int(runs[:, 1].max())
        return gather(runs, [self.arrays[f"segment.{number}"] for number in range(last + 1)], positions)

    def treat_unknown(self, unknown: Any) -> Any:
        """What to do with unknown ids in `exclude` and `allow`, where the caller does not say: a part of something
        larger may have lost them, or left them out."""
        return "ignore" if unknown is None and self.settle is not None else unknown

    def vectors_of(self, ids: Any) -> Floats:
        """(..., d) a copy of the vectors of these ids, without their biases."""
        positions, d = self.ids.find(ids), self.parameters["dim"]
        return np.ascontiguousarray(self.vectors_at(positions.ravel())[:, :d]).reshape(*positions.shape, d)

    def items(self) -> Items:
        """The vectors, biases, offsets and means; copies where they do not lie in one array."""
        self.check()
        arrays, d = self.arrays, self.parameters["dim"]
        offsets, log_bias = arrays["offsets"], arrays.get("log_bias")
        vectors: Any = None if "runs" in arrays else stored_vectors(arrays)
        if isinstance(vectors, Decoded):
            bias, vectors = vectors.bias, vectors if vectors.bias is None else vectors.without_bias()
            return Items(vectors, offsets, log_bias, arrays["means"][:, :d], bias)
        if vectors is None:
            places = self.positions()
            vectors, log_bias = self.vectors_at(places), None if log_bias is None else log_bias[places]
            offsets = np.concatenate([[0], np.cumsum(self.sizes())])
        bias = vectors[:, d] if self.parameters["bias"] else None
        return Items(vectors[:, :d], offsets, log_bias, arrays["means"][:, :d], bias)


def gather(runs: Integers, segments: Sequence[Floats], positions: Integers) -> Floats:
    """(m, w) a copy of the vectors at these positions, by a table of runs (u, 3) of first position, segment and row."""
    run = np.searchsorted(runs[:, 0], positions, side="right") - 1
    rows, chosen = positions - runs[run, 0] + runs[run, 2], runs[run, 1]
    found = np.empty((len(positions), segments[0].shape[1]), np.float32)
    # Positions of one segment often come one after the other, and are then copied once.
    cuts = [0, *(np.flatnonzero(np.diff(chosen)) + 1).tolist(), len(positions)]
    if len(cuts) <= MOST_CUTS:
        for start, stop in pairwise(cuts):
            if stop > start:
                segment = segments[int(chosen[start])]
                np.take(segment, rows[start:stop], axis=0, out=found[start:stop], mode="clip")
        return found
    for number in np.unique(chosen).tolist():
        here = np.flatnonzero(chosen == number)
        found[here] = np.take(segments[number], rows[here], axis=0)
    return found


def make_engine(contents: Contents) -> Engine:
    """The compiled engine over these arrays; ValueError if their values do not fit together."""
    return Engine(dict(contents.arrays), preferred_target(), dict(contents.guards))


def to_stored(contents: Contents) -> Stored:
    """What is written to disk."""
    subsets = contents.subsets
    if contents.settle is not None:
        contents = contents.settle()
    parameters, arrays = dict(contents.parameters), {**contents.arrays, **contents.ids.arrays()}
    if contents.calibration is not None:
        parameters["calibration"] = contents.calibration.parameters()
        arrays |= contents.calibration.arrays()
    if subsets:
        parameters["subsets"] = list(subsets)
        arrays |= {f"{SUBSET}{number}": bits for number, bits in enumerate(subsets.values())}
    return Stored(INDEX.kind, parameters, arrays, version=contents.version)


def from_stored(stored: Stored) -> Contents:
    """The contents that were saved; CorruptIndexError where an array is missing or does not fit."""
    # The first files of version 2 do not say whether items have log biases either.
    unstated: dict[str, Any] = {name: False for name, since in STATED_SINCE.items() if stored.version < since}
    unstated |= {"log_bias": "log_bias" in stored.arrays, "storage": "float32"}
    parameters = {**unstated, **stored.parameters}
    check_choices(parameters, CHOICES)
    _check_rounding(parameters, stored.version)
    # All other arrays are read in full, here or by every call.
    check_guards(stored.guards, stored.guards.keys() - LAZY)
    sizes, subsets = _sizes(parameters), {}
    if "subsets" in parameters:
        subsets = _read_subsets(parameters.pop("subsets"), stored.arrays, sizes["n"])
        own = {name: array for name, array in stored.arrays.items() if not name.startswith(SUBSET)}
        stored = replace(stored, arrays=own)
    INDEX.check(stored, sizes, _groups(parameters))
    ids = id_map_from_arrays(parameters["ids"], stored.arrays)
    arrays = {name: array for name, array in stored.arrays.items() if not name.startswith(("id_", PREFIX))}
    measured = {name.removeprefix(PREFIX): array for name, array in stored.arrays.items() if name.startswith(PREFIX)}
    about = parameters.pop("calibration", None)
    calibration = None if about is None else Calibration.from_stored(about, measured)
    _check_statements(stored, arrays, ids)
    guards = {name: guard for name, guard in stored.guards.items() if name in LAZY}
    return Contents(arrays, ids, parameters, calibration, stored.version, guards, subsets=subsets)


def _read_subsets(names: Any, arrays: Mapping[str, NDArray[Any]], n: int) -> dict[str, NDArray[np.uint8]]:
    """The bits of each subset by its name; CorruptIndexError where they are not."""
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise damaged("its subsets have no names")
    stored = {name for name in arrays if name.startswith(SUBSET)}
    if len(set(names)) != len(names) or stored != {f"{SUBSET}{number}" for number in range(len(names))}:
        raise damaged("its subsets are not those it names")
    found = {name: arrays[f"{SUBSET}{number}"] for number, name in enumerate(names)}
    for name, bits in found.items():
        if bits.dtype != np.uint8 or bits.shape != (-(-n // 8),) or not bits.any():
            raise damaged(f"its subset {show(name)} does not fit its items")
        if n % 8 and bits[-1] & (0xFF >> n % 8):
            raise damaged(f"its subset {show(name)} holds more items than there are")
    return found


def _check_rounding(parameters: Json, version: int) -> None:
    """What was lost by rounding is stated where items are kept in fewer bits, which came with version 3."""
    if parameters["storage"] == "float32":
        return
    rounding = parameters.get("rounding")
    stated = rounding if isinstance(rounding, dict) else {}
    numbers = [stated.get(name) for name in ("largest", "mean", "relative")]
    if version < 3 or not all(type(number) is float and 0.0 <= number < float("inf") for number in numbers):
        raise damaged(f"its parameter rounding is {show(rounding)}")


def _check_statements(stored: Stored, arrays: Mapping[str, NDArray[Any]], ids: IdMap) -> None:
    """Compare what can be computed again, of arrays whose values are looked at."""

    def seen(*names: str) -> bool:
        return stored.verified or all(is_small(stored.arrays[name]) for name in names if name in stored.arrays)

    with np.errstate(all="ignore"):
        if seen(*ids.arrays()):
            check_id_map(ids)
        if seen("means", "log_bias", "tree_means"):
            check_clusters(arrays)
            if seen("vectors", "residual_values", "code_values"):
                check_items(arrays)


def _sizes(parameters: Json) -> dict[str, int]:
    """Length of every axis that the parameters determine."""
    n, k = whole_number(parameters, "items", 1), whole_number(parameters, "clusters", 1)
    w = whole_number(parameters, "dim", 1) + parameters["bias"]
    sizes = {"n": n, "w": w, "k": k, "k+1": k + 1, "k-1": k - 1, "2k-2": 2 * k - 2, "t": w * (w + 1) // 2}
    sizes |= {"blocks": -(-n // 16), "groups": -(-w // 8), "16": 16, "64": 64, "levels": 9, "points": 49}
    return {**sizes, "r": whole_number(parameters, "rank"), "1": 1, "2": 2}


def _groups(parameters: Json) -> set[str]:
    """Groups of arrays that the parameters ask for; in version 1 the outliers may be missing."""
    kind = parameters["dispersion"]
    groups = {parameters["ids"], f"keyed {parameters['ids']}", kind, "outliers", parameters["storage"]}
    if parameters["storage"] != "float32":
        groups |= {"residuals"} | ({"residual bias"} if parameters["bias"] else set())
    groups |= {name for name in ("codes", "tree", "log_bias", "sketch") if parameters[name]}
    groups |= {"calibration"} if parameters.get("calibration") is not None else set()
    return groups | {f"tree-{kind}"} if parameters["tree"] else groups
