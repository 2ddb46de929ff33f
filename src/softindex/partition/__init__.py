"""Ways of cutting the items into cells."""

from softindex.partition.kmeans import (
    ITERATIONS,
    POINTS_PER_CENTROID,
    inverse_order,
    order_by_cell,
    partition,
    shuffle_cells,
)
from softindex.partition.tree import LEAF_ITEMS, grow

__all__ = [
    "ITERATIONS",
    "LEAF_ITEMS",
    "POINTS_PER_CENTROID",
    "grow",
    "inverse_order",
    "order_by_cell",
    "partition",
    "shuffle_cells",
]
