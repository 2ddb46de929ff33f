"""Retrieval with learned similarities: a mixture of logits, its exact and approximate top-k with proofs, and draws.

The modules that train need torch, and are loaded when they are first asked for; a catalogue does without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from softindex.errors import MissingDependencyError
from softindex.mol.catalogue import Catalogue, LearnedDraws, LearnedTopK, build, load
from softindex.mol.decomposition import Decomposition, decompose
from softindex.mol.form import Form, Gate, ItemSide, LearnedSimilarity, QueryWeights
from softindex.mol.retrieval import METHODS

if TYPE_CHECKING:
    from softindex.mol.pooling import ComponentPooling
    from softindex.mol.similarity import DotProduct, MaxSim, MixtureOfLogits, mutual_information_loss

__all__ = [
    "METHODS",
    "Catalogue",
    "ComponentPooling",
    "Decomposition",
    "DotProduct",
    "Form",
    "Gate",
    "ItemSide",
    "LearnedDraws",
    "LearnedSimilarity",
    "LearnedTopK",
    "MaxSim",
    "MixtureOfLogits",
    "QueryWeights",
    "build",
    "decompose",
    "load",
    "mutual_information_loss",
]

_NEED_TORCH = {
    "ComponentPooling": "pooling",
    "DotProduct": "similarity",
    "MaxSim": "similarity",
    "MixtureOfLogits": "similarity",
    "mutual_information_loss": "similarity",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_NEED_TORCH[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(f"{name} needs torch; pip install 'softindex[mol]'.") from error
