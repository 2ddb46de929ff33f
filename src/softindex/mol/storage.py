"""Saved form of a learned-similarity index: the one place that knows its parameters and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softindex.errors import InputError
from softindex.fields import MIXTURE, check_choices, damaged, flatten, is_small, whole_number
from softindex.id_checks import check_id_map
from softindex.ids import IdMap, IntegerIds, RowIds, StringIds, id_map_from_arrays
from softindex.mol.clusters import ItemClusters
from softindex.mol.components import check_item_side
from softindex.mol.items import EncodedItems
from softindex.mol.snapshot import NAMED, Snapshot
from softindex.mol.spec import Gate, ItemSide, QueryWeights, SimilaritySpec, check_spec
from softindex.records import Json, Stored

__all__ = ["KIND", "from_stored", "to_stored"]

KIND = MIXTURE.kind
LAZY = {"components", "gates", "averages", "clusters.features"}
"""Large arrays that are checked when the index is first used."""
ROUNDED = 1e-5
"""Relative difference allowed: sums in another order round differently."""


def to_stored(snapshot: Snapshot) -> Stored:
    """Parameters and arrays to save."""
    spec, ids = snapshot.spec, snapshot.ids
    arrays = flatten(snapshot.items) | ids.arrays()
    for prefix, record in (("gate.", spec.gate), ("query.", spec.query), ("clusters.", snapshot.clusters)):
        arrays |= {} if record is None else flatten(record, prefix)
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
        **_cluster_parameters(snapshot.clusters),
    }
    return Stored(KIND, parameters, arrays, MIXTURE.version_of(arrays))


CHOICES = {
    "ids": ("rows", "integers", "strings"),
    **dict.fromkeys(("normalised", "item_gates", "gate", "query"), (True, False)),
}


def from_stored(stored: Stored) -> Snapshot:
    """The snapshot that was saved; CorruptIndexError if a parameter or array is missing or does not fit."""
    parameters: Json = {**_cluster_parameters(None), **stored.parameters}
    arrays = stored.arrays
    check_choices(parameters, CHOICES)
    MIXTURE.check(stored, _sizes(parameters), _groups(parameters, arrays))
    try:
        spec = _spec(parameters, arrays)
        items = EncodedItems(
            arrays["components"],
            arrays.get("gates"),
            arrays["averages"],
            arrays["lengths"],
            arrays.get("gate_sizes"),
        )
        clusters = _clusters(parameters, arrays) if parameters["clusters"] else None
        if stored.verified or all(is_small(arrays[name]) for name in ("components", "gates") if name in arrays):
            _check_items(spec, items, clusters)
    except InputError as error:
        # A build would refuse these arrays, so none was saved like this.
        raise damaged(str(error).rstrip(".")) from error
    ids = id_map_from_arrays(parameters["ids"], arrays)
    if stored.verified or all(map(is_small, ids.arrays().values())):
        check_id_map(ids)
    return Snapshot.of(spec, items, ids, _next_row(parameters, ids), clusters)


def _cluster_parameters(clusters: ItemClusters | None) -> dict[str, int]:
    counts = (0, 0, 0) if clusters is None else (len(clusters), clusters.fitted, clusters.changed)
    return dict(zip(("clusters", "clusters_fitted", "clusters_changed"), counts, strict=True))


def _clusters(parameters: Json, arrays: Mapping[str, NDArray[Any]]) -> ItemClusters:
    fitted, changed = (
        whole_number(parameters, f"clusters_{name}", least) for name, least in (("fitted", 1), ("changed", 0))
    )
    clusters = ItemClusters(**{"gates": None, **_record(arrays, "clusters.")}, fitted=fitted, changed=changed)
    problem = clusters.problem()
    if problem is not None:
        raise damaged(problem)
    return clusters


def _check_items(spec: SimilaritySpec, items: EncodedItems, clusters: ItemClusters | None) -> None:
    """Check that what is stored about components and gates is theirs: averages, features and sizes."""
    check_item_side(spec, ItemSide(items.components, items.gates))
    again = EncodedItems.measure(items.components, items.gates)
    if np.abs(again.averages - items.averages).max() > ROUNDED * max(float(again.lengths.max()), 1e-30):
        raise damaged("averages are not those of the components")
    if (again.lengths > items.lengths * (1 + 1e-9)).any() or (items.lengths > again.lengths * (1 + ROUNDED)).any():
        raise damaged("lengths are not those of the components")
    if again.gate_sizes is not None and not np.array_equal(again.gate_sizes, np.asarray(items.gate_sizes)):
        raise damaged("gate_sizes are not those of the gates")
    if clusters is not None:
        # Centres may be of larger items, which were removed since.
        largest = max(float(again.lengths.max()), clusters.size(), 1e-30)
        if not clusters.feature_error(items.components) <= ROUNDED * largest:
            raise damaged("clusters.features are not those of the components")


def _next_row(parameters: Json, ids: IdMap) -> int:
    """The id of the next item: -1 where the caller chose the ids, else above all of them, even after some went."""
    row, n = whole_number(parameters, "next_row", NAMED), parameters["n"]
    largest = int(ids.keys[-1]) if isinstance(ids, IntegerIds) else n - 1
    chosen = row == NAMED
    if isinstance(ids, RowIds) if chosen else isinstance(ids, StringIds) or row <= largest:
        raise damaged(f"its parameter next_row is {row}, which does not go with its ids")
    return row


def _sizes(parameters: Json) -> dict[str, int]:
    """Lengths of axes, by the symbols of the table."""
    names = {"n": "n", "p": "item_components", "q": "query_components", "c": "component_dim"}
    sizes = {symbol: whole_number(parameters, name, 1) for symbol, name in names.items()}
    k = whole_number(parameters, "clusters")
    return sizes | {"pairs": sizes["p"] * sizes["q"], "2": 2, "k": k, "k+1": k + 1}


def _groups(parameters: Json, arrays: Mapping[str, NDArray[Any]]) -> set[str]:
    """Groups of arrays that the index must hold."""
    groups = {
        "gate": parameters["gate"],
        "query": parameters["query"],
        "item gates": parameters["item_gates"],
        "query gate": parameters["query"] and parameters["item_gates"],
        # No parameter says so, but without its last component a query would not fit the spec.
        "users": "query.users" in arrays,
        "clusters": parameters["clusters"] > 0,
        "clustered gates": parameters["clusters"] > 0 and parameters["item_gates"],
    }
    return {name for name, present in groups.items() if present} | {parameters["ids"], f"keyed {parameters['ids']}"}


def _spec(parameters: Json, arrays: Mapping[str, NDArray[Any]]) -> SimilaritySpec:
    return check_spec(
        SimilaritySpec(
            parameters["query_components"],
            parameters["item_components"],
            parameters["component_dim"],
            parameters.get("temperature"),  # type: ignore[arg-type]
            parameters["normalised"],
            Gate(**_record(arrays, "gate.")) if parameters["gate"] else None,
            QueryWeights(**_record(arrays, "query.")) if parameters["query"] else None,
            parameters["item_gates"],
        )
    )


def _record(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, Any]:
    """The arrays that `flatten` gave this prefix, by their fields."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
