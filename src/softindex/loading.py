"""Opens a saved directory of any kind by what its manifest says."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from softindex.errors import NotAnIndexError
from softindex.fields import ADAPTIVE, INDEX, MIXTURE
from softindex.store import load as load_stored

if TYPE_CHECKING:
    from softindex.adaptive import AdaptiveSoftmax
    from softindex.index import Index
    from softindex.mol import MixtureIndex

__all__ = ["load"]

OPENERS = {
    INDEX.kind: "softindex.index",
    MIXTURE.kind: "softindex.mol.index",
    ADAPTIVE.kind: "softindex.adaptive",
}
"""The module of each kind; its `from_stored` makes the object."""
LIVE = "catalogue.sqlite"
"""A directory with this file is a `LiveIndex`."""


def load(
    path: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False
) -> Index | MixtureIndex | AdaptiveSoftmax:
    """Open what `save` wrote: an `Index`, a `mol.MixtureIndex` or an `AdaptiveSoftmax`.

    Args:
        path: The directory.
        mmap: Map the files; pages are read when first used, and large arrays are checked block by block then.  False
            reads everything into memory and checks every byte.
        verify: Check every byte against its checksum first, as `softindex verify` does, and compare everything that is
            stored about items with the items.

    Returns:
        The object that was saved.

    Raises:
        NotAnIndexError: The path holds nothing that softindex saved.
        CorruptIndexError: A checksum, a size or a value is wrong.
        FormatVersionError: A newer version of softindex saved it.
    """
    if isinstance(path, str | os.PathLike) and os.path.isfile(os.path.join(path, LIVE)):
        raise NotAnIndexError(f"{os.fspath(path)!s} is a catalogue that changes; open it with softindex.open.")
    stored = load_stored(path, mmap=mmap, verify=verify)
    module = OPENERS.get(stored.kind)
    if module is None:
        raise NotAnIndexError(
            f"{os.fspath(path)!s} holds a saved {stored.kind!r}, which softindex.load does not open; "
            f"expected one of {', '.join(OPENERS)}."
        )
    # Imported here: a program that loads one kind does not pay for the others.
    open_stored: Callable[[Any], Any] = import_module(module).from_stored
    return open_stored(stored)  # type: ignore[no-any-return]
