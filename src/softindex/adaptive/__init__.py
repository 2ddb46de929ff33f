"""The few most probable classes of a huge output layer, with a guarantee.

`Head` and `Decoder` need torch and load it on first use; the rest does not.
"""

from typing import TYPE_CHECKING, Any

from softindex import optional as _optional
from softindex.adaptive.indexed import IndexedSoftmax
from softindex.adaptive.softmax import GUARANTEES, AdaptiveSoftmax, from_stored
from softindex.adaptive.speculative import Speculated, speculate

if TYPE_CHECKING:
    from softindex.adaptive.generating import Decoder
    from softindex.adaptive.head import Head, Tokens

__all__ = [
    "GUARANTEES",
    "AdaptiveSoftmax",
    "Decoder",
    "Head",
    "IndexedSoftmax",
    "Speculated",
    "Tokens",
    "from_stored",
    "speculate",
]


def __getattr__(name: str) -> Any:
    return _optional.load(__name__, {"Decoder": "generating", "Head": "head", "Tokens": "head"}, name, "train")
