"""softindex: softmax over millions of items, in microseconds, with the error stated."""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from softindex.adaptive import AdaptiveSoftmax
from softindex.builder import build
from softindex.client import Client
from softindex.errors import (
    CorruptIndexError,
    FormatVersionError,
    InputError,
    MethodError,
    MissingDependencyError,
    NotAnIndexError,
    SaveError,
    ServiceError,
    ShardError,
    SoftindexError,
    StorageError,
    UnknownIdError,
)
from softindex.index import Index
from softindex.live import LiveIndex, open
from softindex.loading import load
from softindex.records import Draws, Estimate, TopK

if _TYPE_CHECKING:
    from softindex import decisions, mol, sharded
    from softindex import train as train

__all__ = [
    "AdaptiveSoftmax",
    "Client",
    "CorruptIndexError",
    "Draws",
    "Estimate",
    "FormatVersionError",
    "Index",
    "InputError",
    "LiveIndex",
    "MethodError",
    "MissingDependencyError",
    "NotAnIndexError",
    "SaveError",
    "ServiceError",
    "ShardError",
    "SoftindexError",
    "StorageError",
    "TopK",
    "UnknownIdError",
    "__version__",
    "build",
    "decisions",
    "load",
    "mol",
    "open",
    "sharded",
]

__version__ = _version("softindex")


def __getattr__(name: str) -> _Any:
    # The core must not import torch, which `train` needs, so these products load when they are first used.
    if name not in ("decisions", "mol", "ray", "sharded", "train"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    # `train` is not in __all__: `from softindex import *` must work without torch.
    return sorted({*globals(), *__all__, "ray", "train"})
