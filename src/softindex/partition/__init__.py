"""Divide the items into clusters, by k-means or by a binary tree."""

from softindex.partition.kmeans import ITERATIONS, POINTS_PER_CENTROID, partition
from softindex.partition.order import inverse_order, order_by_cluster, shuffle_clusters
from softindex.partition.tree import LEAF_ITEMS, grow

__all__ = [
    "ITERATIONS",
    "LEAF_ITEMS",
    "POINTS_PER_CENTROID",
    "grow",
    "inverse_order",
    "order_by_cluster",
    "partition",
    "shuffle_clusters",
]
