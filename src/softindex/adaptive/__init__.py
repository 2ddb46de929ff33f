"""The few most probable classes of a huge output layer, with a guarantee."""

from softindex.adaptive.softmax import GUARANTEES, AdaptiveSoftmax, SoftTopK

__all__ = ["GUARANTEES", "AdaptiveSoftmax", "SoftTopK"]
