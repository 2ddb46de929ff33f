"""The catalogue of `softindex serve --demo`: things with a colour and a material, near those that resemble them."""

from __future__ import annotations

from softindex.builder import build
from softindex.evaluate.shop import shop
from softindex.index import Index

__all__ = ["demo_index"]

ITEMS = 32_240


def demo_index(seed: int = 0) -> Index:
    """An index of 32,240 named items; the same on every machine."""
    names, vectors = shop(ITEMS, seed=seed)
    return build(vectors, ids=names, codes=True, seed=seed)
