"""softindex: softmax over millions of items, in microseconds, with the error stated."""

from importlib.metadata import version as _version

from softindex import mol
from softindex.adaptive import AdaptiveSoftmax, SoftTopK
from softindex.builder import build
from softindex.errors import (
    CorruptIndexError,
    FormatVersionError,
    InputError,
    MethodError,
    MissingDependencyError,
    NotAnIndexError,
    SaveError,
    SoftindexError,
    StorageError,
    UnknownIdError,
)
from softindex.index import Index, load
from softindex.records import Draws, Estimate, TopK

__all__ = [
    "AdaptiveSoftmax",
    "CorruptIndexError",
    "Draws",
    "Estimate",
    "FormatVersionError",
    "Index",
    "InputError",
    "MethodError",
    "MissingDependencyError",
    "NotAnIndexError",
    "SaveError",
    "SoftTopK",
    "SoftindexError",
    "StorageError",
    "TopK",
    "UnknownIdError",
    "__version__",
    "build",
    "load",
    "mol",
]

__version__ = _version("softindex")
