"""Ways of cutting the items into cells."""

from softindex.partition.kmeans import order, partition

__all__ = ["order", "partition"]
