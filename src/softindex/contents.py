"""The contents of an index, and their names on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.errors import CorruptIndexError
from softindex.ids import IdMap, id_map_from_arrays
from softindex.kernels import Engine, preferred_target
from softindex.records import Codes, Dispersion, Floats, Integers, Json, Moments, Outliers, Stored, Tree

__all__ = ["KIND", "Contents", "describe", "from_stored", "make_engine", "to_stored"]

KIND = "index"


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything an index consists of.  Arrays over items are in cluster order."""

    vectors: Floats
    """(n, d) the items."""
    offsets: Integers
    """(k + 1,) cluster c is rows offsets[c] .. offsets[c + 1]."""
    ids: IdMap
    log_bias: Floats | None
    """(n,) or None."""
    moments: Moments
    parameters: Json
    """How the index was built: seed, requested dispersion, the version that built it."""
    codes: Codes | None = None
    outliers: Outliers | None = None
    """None in indexes that did not list them."""
    tree: Tree | None = None
    """A binary tree over the clusters, or None."""


def make_engine(contents: Contents) -> Engine:
    """Return the compiled engine over these contents; ValueError if the arrays do not fit together."""
    return Engine(_item_arrays(contents), preferred_target())


def describe(contents: Contents) -> Json:
    """How the contents were made and what they hold, in words and numbers."""
    dispersion = contents.moments.dispersion
    return {
        **contents.parameters,
        "items": len(contents.vectors),
        "dim": contents.vectors.shape[1],
        "clusters": len(contents.moments.means),
        "ids": contents.ids.kind,
        "dispersion": dispersion.kind,
        "rank": dispersion.rank,
        "codes": contents.codes is not None,
        "tree": contents.tree is not None,
    }


def _tree_arrays(tree: Tree | None) -> dict[str, NDArray[Any] | None]:
    if tree is None:
        return {}
    return {
        "tree_children": tree.children,
        "tree_means": tree.means,
        "tree_log_sizes": tree.log_sizes,
        "tree_forms": tree.dispersion.forms,
        "tree_scales": tree.dispersion.scales,
        "tree_spread": tree.dispersion.spread,
    }


def _item_arrays(contents: Contents) -> dict[str, NDArray[Any]]:
    """Every array but those of the ids, by its name on disk."""
    moments, dispersion, codes = contents.moments, contents.moments.dispersion, contents.codes
    optional = {
        "log_bias": contents.log_bias,
        "min_cosine": moments.min_cosine,
        "reach": moments.reach,
        **_outlier_arrays(contents.outliers),
        "bias_max": moments.bias_max,
        "forms": dispersion.forms,
        "scales": dispersion.scales,
        "spread": dispersion.spread,
        "excess": dispersion.excess,
        **_tree_arrays(contents.tree),
    }
    return {
        "vectors": contents.vectors,
        "offsets": contents.offsets,
        "means": moments.means,
        "log_sizes": moments.log_sizes,
        "radii": moments.radii,
        "norm_min": moments.norm_min,
        "norm_max": moments.norm_max,
        **{name: array for name, array in optional.items() if array is not None},
        **({} if codes is None else {name: getattr(codes, field) for name, field in CODES.items()}),
    }


def to_stored(contents: Contents) -> Stored:
    """Return the parameters and arrays that `from_stored` makes the same contents of."""
    return Stored(KIND, describe(contents), {**_item_arrays(contents), **contents.ids.arrays()})


CODES = {"code_values": "values", "code_scales": "scales", "code_errors": "errors", "code_lengths": "lengths"}
"""The arrays of the codes on disk, and the fields of the record they become."""
OUTLIERS = {"outlier_positions": "positions", "outlier_vectors": "vectors", "outlier_farthest": "farthest"}


def _outlier_arrays(outliers: Outliers | None) -> dict[str, NDArray[Any] | None]:
    return {} if outliers is None else {name: getattr(outliers, field) for name, field in OUTLIERS.items()}


def _stored_outliers(arrays: Mapping[str, NDArray[Any]], parameters: Json) -> Outliers | None:
    """The listed outliers, if any; the engine checks that their positions are those of items."""
    if not any(name in arrays for name in OUTLIERS):
        return None
    outliers = Outliers(**{field: arrays[name] for name, field in OUTLIERS.items()})
    shape = (len(outliers.positions), parameters["dim"])
    if outliers.positions.ndim != 1 or outliers.vectors.shape != shape or outliers.farthest.shape != (1,):
        raise _damaged("the listed outliers do not fit together")
    return outliers


DTYPES = {
    "vectors": np.float32,
    "offsets": np.int64,
    "means": np.float32,
    "log_sizes": np.float64,
    "radii": np.float32,
    "norm_min": np.float32,
    "norm_max": np.float32,
    "min_cosine": np.float32,
    "reach": np.float32,
    "outlier_positions": np.int64,
    "outlier_vectors": np.float32,
    "outlier_farthest": np.float32,
    "log_bias": np.float32,
    "bias_max": np.float32,
    "scales": np.float32,
    "spread": np.float32,
    "excess": np.float32,
    "code_values": np.int8,
    "code_scales": np.float32,
    "code_errors": np.float32,
    "code_lengths": np.float32,
    "tree_children": np.int64,
    "tree_means": np.float32,
    "tree_log_sizes": np.float64,
    "tree_scales": np.float32,
    "tree_spread": np.float32,
    "id_values": np.int64,
    "id_keys": np.int64,
    "id_ends": np.int64,
    "id_text": np.uint8,
    "id_hashes": np.uint64,
}


def _damaged(what: str) -> CorruptIndexError:
    return CorruptIndexError(f"{what}; restore a copy or build it again.")


def _check_arrays(arrays: Mapping[str, NDArray[Any]], parameters: Json) -> None:
    """A manifest may be intact and still not describe an index: refuse it before anything reads past an array."""
    for name, dtype in DTYPES.items():
        if name in arrays and arrays[name].dtype != dtype:
            raise _damaged(f"{name} is {arrays[name].dtype} where {np.dtype(dtype)} belongs")
    for name in ("id_rows", "id_positions"):
        if name in arrays and arrays[name].dtype.kind != "i":
            raise _damaged(f"{name} is {arrays[name].dtype} where integers belong")
    if "id_text" in arrays and arrays["id_text"].ndim != 1:
        raise _damaged("the text of the ids is not one text")
    _check_dispersion(arrays, parameters["dispersion"])
    _check_codes(arrays, parameters)
    shape = (parameters["items"], parameters["dim"])
    if arrays["vectors"].shape != shape:
        raise _damaged(f"vectors have shape {arrays['vectors'].shape}, expected {shape}")
    for name in ("id_rows", "id_values", "id_keys", "id_ends", "id_hashes", "id_positions"):
        if name in arrays and arrays[name].shape != (parameters["items"],):
            raise _damaged(f"{name} does not have one entry per item")
    for name in ("log_sizes", "norm_min", "min_cosine", "reach", "excess"):
        if name in arrays and arrays[name].shape != (parameters["clusters"],):
            raise _damaged(f"{name} does not have one entry per cluster")


def _check_dispersion(arrays: Mapping[str, NDArray[Any]], kind: object) -> None:
    if kind not in ("none", "full", "rank"):
        raise _damaged(f"there is no dispersion {kind!r}")
    for name in ("forms", "tree_forms"):
        if name in arrays and arrays[name].dtype != (np.int16 if kind == "full" else np.int8):
            raise _damaged("the forms of the dispersion are of the wrong type")
    if kind != "none" and not {"forms", "scales", "excess"} <= arrays.keys():
        raise _damaged("the dispersion of the clusters is missing")


def _check_codes(arrays: Mapping[str, NDArray[Any]], parameters: Json) -> None:
    # Indexes of the first versions do not say whether they keep codes: they keep none.
    if {name in arrays for name in CODES} != {bool(parameters.get("codes", False))}:
        raise _damaged("the codes of the items are not all there")
    n, d, k = (parameters[name] for name in ("items", "dim", "clusters"))
    for name, shape in (("code_values", (n, d)), ("code_scales", (n,)), ("code_errors", (k,)), ("code_lengths", (k,))):
        if name in arrays and arrays[name].shape != shape:
            raise _damaged(f"{name} has shape {arrays[name].shape}, expected {shape}")


def _stored_tree(arrays: Mapping[str, NDArray[Any]], parameters: Json) -> Tree | None:
    """The tree, if there is one; the engine checks how it hangs together."""
    kept = parameters.get("tree", False)  # unknown to the first indexes of version 1
    if kept is False:
        return None
    if kept is not True:
        raise _damaged(f"there is no tree {kept!r}")
    kind = parameters["dispersion"]
    names = ("tree_forms", "tree_scales", "tree_spread")
    if kind != "none" and not {"tree_forms", "tree_scales"} <= arrays.keys():
        raise _damaged("the dispersion of the tree is missing")
    if arrays["tree_log_sizes"].shape != (2 * parameters["clusters"] - 2,):
        raise _damaged("the tree does not fit the clusters")
    dispersion = Dispersion(kind, int(parameters["rank"]), *(arrays.get(name) for name in names))
    return Tree(arrays["tree_children"], arrays["tree_means"], arrays["tree_log_sizes"], dispersion)


def from_stored(stored: Stored) -> Contents:
    """The contents saved by `to_stored`; CorruptIndexError where parts are missing or do not fit."""
    arrays, parameters = stored.arrays, stored.parameters
    try:
        _check_arrays(arrays, parameters)
        kind = parameters["dispersion"]
        names = ("forms", "scales", "spread", "excess")
        dispersion = Dispersion(kind, int(parameters["rank"]), *(arrays.get(name) for name in names))
        moments = Moments(
            means=arrays["means"],
            log_sizes=arrays["log_sizes"],
            radii=arrays["radii"],
            norm_min=arrays["norm_min"],
            norm_max=arrays["norm_max"],
            min_cosine=arrays.get("min_cosine"),
            reach=arrays.get("reach"),
            bias_max=arrays.get("bias_max"),
            dispersion=dispersion,
        )
        ids = id_map_from_arrays(parameters["ids"], arrays)
        tree, bias = _stored_tree(arrays, parameters), arrays.get("log_bias")
        far = _stored_outliers(arrays, parameters)
        codes = Codes(**{field: arrays[name] for name, field in CODES.items()}) if parameters.get("codes") else None
        return Contents(arrays["vectors"], arrays["offsets"], ids, bias, moments, dict(parameters), codes, far, tree)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(f"this is not a complete index ({error})") from error
