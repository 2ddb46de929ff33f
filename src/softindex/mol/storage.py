"""Saved form of a learned-similarity index: the one place that knows its parameters and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.errors import CorruptIndexError
from softindex.ids import id_map_from_arrays
from softindex.mol.items import EncodedItems
from softindex.mol.snapshot import Snapshot
from softindex.mol.spec import Gate, QueryWeights, SimilaritySpec, check_spec
from softindex.records import Json, Stored

__all__ = ["KIND", "from_stored", "to_stored"]

KIND = "mixture-index"


def to_stored(snapshot: Snapshot) -> Stored:
    """Parameters and arrays to save."""
    parameters, arrays = _spec_to_stored(snapshot.spec)
    items = snapshot.items
    arrays |= {"components": items.components, "averages": items.averages, "lengths": items.lengths}
    if items.gates is not None:
        arrays |= {"gates": items.gates, "gate_sizes": items.gate_sizes}
    arrays |= snapshot.ids.arrays()
    more = {"ids": snapshot.ids.kind, "next_row": snapshot.next_row, "n": snapshot.n}
    return Stored(KIND, {**parameters, **more}, arrays)


def from_stored(stored: Stored) -> Snapshot:
    """The snapshot that was saved; CorruptIndexError if a parameter or array is missing or does not fit."""
    parameters, arrays = stored.parameters, stored.arrays
    try:
        spec, n = _spec_from_stored(parameters, arrays), int(parameters["n"])
        items = EncodedItems(
            arrays["components"],
            arrays["gates"] if spec.item_gates else None,
            arrays["averages"],
            np.asarray(arrays["lengths"]),
            np.asarray(arrays["gate_sizes"]) if spec.item_gates else np.zeros(0),
        )
        _check_shapes(spec, items, n)
        ids = id_map_from_arrays(str(parameters["ids"]), arrays)
        return Snapshot.of(spec, items, ids, int(parameters["next_row"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(
            f"the learned-similarity index is damaged ({error}); restore a copy or build it again."
        ) from error


def _check_shapes(spec: SimilaritySpec, items: EncodedItems, n: int) -> None:
    expected = {
        "components": (n, spec.item_components, spec.component_dim),
        "averages": (n, spec.component_dim),
        "lengths": (spec.item_components,),
    }
    if spec.item_gates:
        expected |= {"gates": (n, spec.pairs), "gate_sizes": (spec.pairs,)}
    for name, shape in expected.items():
        found = getattr(items, name).shape
        if found != shape:
            raise ValueError(f"{name} has shape {found}; expected {shape}")


def _spec_to_stored(spec: SimilaritySpec) -> tuple[Json, dict[str, NDArray[Any]]]:
    parameters = {
        "query_components": spec.query_components,
        "item_components": spec.item_components,
        "component_dim": spec.component_dim,
        "temperature": spec.temperature,
        "normalised": spec.normalised,
        "item_gates": spec.item_gates,
        "gate": spec.gate is not None,
        "query": spec.query is not None,
    }
    arrays: dict[str, NDArray[Any]] = {}
    for prefix, weights in (("gate", spec.gate), ("query", spec.query)):
        for field in () if weights is None else fields(weights):
            value = getattr(weights, field.name)
            if value is not None:
                arrays[f"{prefix}.{field.name}"] = value
    return parameters, arrays


def _spec_from_stored(parameters: Json, arrays: Mapping[str, NDArray[Any]]) -> SimilaritySpec:
    """The spec that was saved; KeyError, TypeError or ValueError (InputError is one) where something is wrong."""

    def weights(prefix: str) -> dict[str, Any]:
        begin = f"{prefix}."
        return {name.removeprefix(begin): array for name, array in arrays.items() if name.startswith(begin)}

    return check_spec(
        SimilaritySpec(
            int(parameters["query_components"]),
            int(parameters["item_components"]),
            int(parameters["component_dim"]),
            float(parameters["temperature"]),
            bool(parameters["normalised"]),
            Gate(**weights("gate")) if parameters["gate"] else None,
            QueryWeights(**weights("query")) if parameters["query"] else None,
            bool(parameters["item_gates"]),
        )
    )
