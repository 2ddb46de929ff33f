"""Builds a MixtureIndex from a learned similarity and its items."""

from __future__ import annotations

from typing import Any

from softindex.arguments import check_count, check_ids
from softindex.errors import InputError
from softindex.mol.clusters import default_clusters
from softindex.mol.index import MixtureIndex
from softindex.mol.items import EncodedItems, count_items, encode_items
from softindex.mol.snapshot import Snapshot
from softindex.mol.spec import ItemSide, LearnedSimilarity, check_spec

__all__ = ["build"]


def build(similarity: LearnedSimilarity, items: Any, *, ids: Any = None, clusters: int | None = None) -> MixtureIndex:
    """Build an index: compute the components, gates and averages of all items, once, and cluster them.

    Args:
        similarity: A `MixtureOfLogits`, `DotProduct` or `MaxSim`, or any object with the methods of
            `LearnedSimilarity`.
        items: Items as `similarity.item_side` takes them; it gets a block of them at a time.
        ids: Integers or strings, one per item; None uses row numbers.
        clusters: Number of clusters for method "clusters" of `top_k`; 0 builds faster, without them.  None chooses
            twice the square root of the number of items, and 0 where there is no gate, as in `MaxSim`: the components
            of such items come in no order, and averages are better candidates.  With one pair of components there are
            never any: every method scores all items.

    Returns:
        The index.

    Raises:
        InputError: When the similarity, the items, the ids or the number of clusters are invalid.
    """
    if not (hasattr(similarity, "spec") and hasattr(similarity, "item_side")):
        raise InputError(
            f"the similarity is of type {type(similarity).__name__}; pass an object with spec() and item_side(items)."
        )
    if isinstance(items, ItemSide):
        raise InputError("items are an ItemSide; pass the items that item_side of the similarity takes.")
    spec, n = check_spec(similarity.spec()), count_items(items)
    if clusters is None:
        count = 0 if spec.gate is None else default_clusters(n)
    else:
        count = check_count(clusters, "clusters", least=0)
    if count > n > 0:
        raise InputError(f"clusters is {count} but there are {n} items; pass at most that many.")
    chosen = None if ids is None else check_ids(ids, n)
    encoded = EncodedItems.measure(*encode_items(similarity, spec, items))
    return MixtureIndex(Snapshot.start(spec, encoded, chosen, count if spec.pairs > 1 else 0), similarity)
