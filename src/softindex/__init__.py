"""softindex: softmax over millions of items, in microseconds, with the error stated."""

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
from softindex.index import Index, build, load
from softindex.records import Draws, Estimate, TopK

__all__ = [
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
    "SoftindexError",
    "StorageError",
    "TopK",
    "UnknownIdError",
    "build",
    "load",
]
