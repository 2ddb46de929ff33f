"""The few most probable classes of a huge output layer, with a guarantee."""

from softindex.adaptive.softmax import GUARANTEES, AdaptiveSoftmax, from_stored

__all__ = ["GUARANTEES", "AdaptiveSoftmax", "from_stored"]
