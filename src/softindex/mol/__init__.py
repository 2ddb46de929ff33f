"""Retrieval with learned similarities: a mixture of logits, proven and approximate top-k search, and sampling.

The names for training load torch on first use.  A `MixtureIndex` does not need it.
"""

from typing import TYPE_CHECKING, Any

from softindex import optional as _optional
from softindex.mol.building import build
from softindex.mol.decomposition import Decomposition, decompose
from softindex.mol.index import MixtureIndex
from softindex.mol.retrieval import METHODS
from softindex.mol.sampling import SAMPLE_METHODS
from softindex.mol.spec import Gate, ItemSide, LearnedSimilarity, QueryWeights, SimilaritySpec

if TYPE_CHECKING:
    from softindex.mol.dots import DotProduct, MaxSim
    from softindex.mol.pooling import ComponentPooling
    from softindex.mol.similarity import MixtureOfLogits, mutual_information_loss

__all__ = [
    "METHODS",
    "SAMPLE_METHODS",
    "ComponentPooling",
    "Decomposition",
    "DotProduct",
    "Gate",
    "ItemSide",
    "LearnedSimilarity",
    "MaxSim",
    "MixtureIndex",
    "MixtureOfLogits",
    "QueryWeights",
    "SimilaritySpec",
    "build",
    "decompose",
    "mutual_information_loss",
]

_NEED_TORCH = {
    "ComponentPooling": "pooling",
    "DotProduct": "dots",
    "MaxSim": "dots",
    "MixtureOfLogits": "similarity",
    "mutual_information_loss": "similarity",
}


def __getattr__(name: str) -> Any:
    return _optional.load(__name__, _NEED_TORCH, name, "mol")
