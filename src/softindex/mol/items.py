"""EncodedItems: the parts of a score that do not depend on the query, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softindex.errors import InputError, with_article
from softindex.mol.components import check_item_side
from softindex.mol.spec import ItemSide, LearnedSimilarity, SimilaritySpec
from softindex.records import Doubles, Floats, Integers

__all__ = ["EncodedItems", "count_items", "encode_items"]

BLOCK = 8192
"""Items that a similarity encodes at a time: its activations must fit into memory."""


@dataclass(frozen=True, slots=True)
class EncodedItems:
    """Components and gates of n items, and the sizes that bound their scores."""

    components: Floats
    """(n, P_x, d)"""
    gates: Floats | None
    """(n, P); None where items have no gates."""
    averages: Floats
    """(n, d) mean component of each item."""
    lengths: Doubles
    """(P_x,) largest length of each component."""
    gate_sizes: Doubles | None
    """(P,) largest absolute value of each gate; None where items have no gates."""

    @classmethod
    def measure(cls, components: Floats, gates: Floats | None) -> EncodedItems:
        """Items with these components and gates; the rest is computed."""
        averages = np.ascontiguousarray(components.mean(axis=1), np.float32)
        squares = np.zeros(components.shape[1])
        for begin in range(0, len(components), BLOCK):
            block = components[begin : begin + BLOCK]
            squares = np.maximum(squares, np.einsum("npd,npd->np", block, block, dtype=np.float64).max(axis=0))
        sizes = None if gates is None else np.maximum(gates.max(axis=0), -gates.min(axis=0)).astype(np.float64)
        return cls(components, gates, averages, np.sqrt(squares) * (1 + 1e-12), sizes)

    def join(self, components: Floats, gates: Floats | None) -> EncodedItems:
        """These items and others after them."""
        both = None if self.gates is None or gates is None else np.concatenate([self.gates, gates])
        return EncodedItems.measure(np.concatenate([self.components, components]), both)

    def take(self, positions: Integers) -> EncodedItems:
        """The items at these positions."""
        gates = None if self.gates is None else self.gates[positions]
        return EncodedItems.measure(self.components[positions], gates)


def count_items(items: Any) -> int:
    """Number of items; InputError if they cannot be counted and sliced."""
    try:
        n = len(items)
        items[:0]
    except (TypeError, KeyError, IndexError) as error:
        raise InputError(
            f"items are {with_article(type(items).__name__)}; pass an array, a tensor or a sequence with one entry per "
            "item."
        ) from error
    return n


def encode_items(
    similarity: LearnedSimilarity | None, spec: SimilaritySpec, items: Any
) -> tuple[Floats, Floats | None]:
    """Components (n, P_x, d) and gates (n, P) of items as the similarity takes them, or of an `ItemSide`."""
    if isinstance(items, ItemSide):
        return check_item_side(spec, items)
    if similarity is None:
        raise InputError(
            "this index was loaded without the similarity that encodes items; pass similarity.item_side(items)."
        )
    n = count_items(items)
    if n == 0:
        raise InputError("there are no items; pass at least one.")
    components = np.empty((n, spec.item_components, spec.component_dim), np.float32)
    gates = np.empty((n, spec.pairs), np.float32) if spec.item_gates else None
    for begin in range(0, n, BLOCK):
        block = items[begin : begin + BLOCK]
        encoded, weights = check_item_side(spec, similarity.item_side(block), len(block), begin)
        components[begin : begin + BLOCK] = encoded
        if gates is not None:
            gates[begin : begin + BLOCK] = weights
    return components, gates
