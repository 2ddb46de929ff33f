"""Saved form of a learned-similarity index: the one place that knows its parameters and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from softindex.errors import CorruptIndexError
from softindex.fields import MIXTURE, flatten, whole_number
from softindex.ids import id_map_from_arrays
from softindex.mol.items import EncodedItems
from softindex.mol.snapshot import NAMED, Snapshot
from softindex.mol.spec import Gate, QueryWeights, SimilaritySpec, check_spec
from softindex.records import Json, Stored

__all__ = ["KIND", "from_stored", "to_stored"]

KIND = MIXTURE.kind


def to_stored(snapshot: Snapshot) -> Stored:
    """Parameters and arrays to save."""
    spec, ids = snapshot.spec, snapshot.ids
    arrays = flatten(snapshot.items) | ids.arrays()
    for prefix, weights in (("gate.", spec.gate), ("query.", spec.query)):
        arrays |= {} if weights is None else flatten(weights, prefix)
    parameters = {
        "query_components": spec.query_components,
        "item_components": spec.item_components,
        "component_dim": spec.component_dim,
        "temperature": spec.temperature,
        "normalised": spec.normalised,
        "item_gates": spec.item_gates,
        "gate": spec.gate is not None,
        "query": spec.query is not None,
        "ids": ids.kind,
        "next_row": snapshot.next_row,
        "n": snapshot.n,
    }
    return Stored(KIND, parameters, arrays, MIXTURE.version_of(arrays))


def from_stored(stored: Stored) -> Snapshot:
    """The snapshot that was saved; CorruptIndexError if a parameter or array is missing or does not fit."""
    parameters, arrays = stored.parameters, stored.arrays
    try:
        MIXTURE.check(stored, _sizes(parameters), _groups(parameters, arrays))
        spec = _spec(parameters, arrays)
        items = EncodedItems(
            arrays["components"],
            arrays.get("gates"),
            arrays["averages"],
            arrays["lengths"],
            arrays.get("gate_sizes"),
        )
        ids = id_map_from_arrays(parameters["ids"], arrays)
        return Snapshot.of(spec, items, ids, whole_number(parameters, "next_row", NAMED))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(
            f"this learned-similarity index is damaged ({error}); restore a copy or build it again."
        ) from error


def _sizes(parameters: Json) -> dict[str, int]:
    """Lengths of axes, by the symbols of the table."""
    names = {"n": "n", "p": "item_components", "q": "query_components", "c": "component_dim"}
    sizes = {symbol: whole_number(parameters, name, 1) for symbol, name in names.items()}
    return sizes | {"pairs": sizes["p"] * sizes["q"], "2": 2}


def _groups(parameters: Json, arrays: Mapping[str, NDArray[Any]]) -> set[str]:
    """Groups of arrays that the index must hold."""
    groups = {
        "gate": parameters["gate"],
        "query": parameters["query"],
        "item gates": parameters["item_gates"],
        "query gate": parameters["query"] and parameters["item_gates"],
        # No parameter says so, but without its last component a query would not fit the spec.
        "users": "query.users" in arrays,
    }
    return {name for name, present in groups.items() if present} | {parameters["ids"], f"keyed {parameters['ids']}"}


def _spec(parameters: Json, arrays: Mapping[str, NDArray[Any]]) -> SimilaritySpec:
    def weights(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    return check_spec(
        SimilaritySpec(
            parameters["query_components"],
            parameters["item_components"],
            parameters["component_dim"],
            float(parameters["temperature"]),
            bool(parameters["normalised"]),
            Gate(**weights("gate.")) if parameters["gate"] else None,
            QueryWeights(**weights("query.")) if parameters["query"] else None,
            bool(parameters["item_gates"]),
        )
    )
