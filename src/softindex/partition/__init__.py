"""Ways of cutting the items into cells."""

from softindex.partition.kmeans import (
    ITERATIONS,
    POINTS_PER_CENTROID,
    inverse_order,
    order_by_cell,
    partition,
    shuffle_cells,
)

__all__ = ["ITERATIONS", "POINTS_PER_CENTROID", "inverse_order", "order_by_cell", "partition", "shuffle_cells"]
