"""softindex: softmax over millions of items, in microseconds, with the error stated."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from softindex import adaptive, decisions, mol, sharded
    from softindex import train as train
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

    __version__: str

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
    "adaptive",
    "build",
    "decisions",
    "load",
    "mol",
    "open",
    "sharded",
]

_HOMES = {
    "AdaptiveSoftmax": "adaptive",
    "Client": "client",
    "Draws": "records",
    "Estimate": "records",
    "Index": "index",
    "LiveIndex": "live",
    "TopK": "records",
    "build": "builder",
    "load": "loading",
    "open": "live",
}
"""Where each name is defined; the others in __all__ are errors, or products."""
_PRODUCTS = ("adaptive", "decisions", "mol", "ray", "sharded", "train")


def __getattr__(name: str) -> _Any:
    # Everything loads when it is first used: the import takes a millisecond, and the core never needs torch.
    if name in _PRODUCTS:
        return _import_module(f"{__name__}.{name}")
    if name == "__version__":
        from importlib.metadata import version

        value: _Any = version("softindex")
    elif name in _HOMES:
        value = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name.endswith("Error") and name in __all__:
        value = getattr(_import_module(f"{__name__}.errors"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # `train` is not in __all__: `from softindex import *` must work without torch.
    return sorted({*globals(), *__all__, *_PRODUCTS})
