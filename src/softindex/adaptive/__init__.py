"""The few most probable classes of a huge output layer, with a guarantee.

`Head` needs torch and loads it on first use; the rest does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from softindex.adaptive.softmax import GUARANTEES, AdaptiveSoftmax, from_stored
from softindex.adaptive.speculative import Speculated, speculate
from softindex.errors import MissingDependencyError

if TYPE_CHECKING:
    from softindex.adaptive.head import Head, Tokens

__all__ = ["GUARANTEES", "AdaptiveSoftmax", "Head", "Speculated", "Tokens", "from_stored", "speculate"]


def __getattr__(name: str) -> Any:
    if name not in ("Head", "Tokens"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.head"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            f'{name} needs torch; run pip install ".[train]" in a checkout of softindex.'
        ) from error
