"""`softindex.open`: an existing catalogue, or a new one from an index, from vectors, or from a dimension."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import Any

import numpy as np

from softindex.arguments import check_choice, check_count, check_flag
from softindex.builder import build
from softindex.errors import InputError, SaveError
from softindex.index import Index
from softindex.live.catalogue import LiveIndex
from softindex.live.folding import from_index
from softindex.live.generation import write_generation
from softindex.live.locking import WriterLock
from softindex.live.log import DATABASE, Log
from softindex.moments import choose_dispersion
from softindex.records import Json

__all__ = ["is_catalogue", "open"]

PLAIN = {"codes": False, "tree": False, "sketch": False, "folded": 0}
"""What no catalogue has, and that nothing was folded into its clusters yet."""


def open(
    path: str | os.PathLike[str],
    *,
    create: Any = None,
    read_only: bool = False,
    compaction: str = "background",
    **options: Any,
) -> LiveIndex:
    """Open a catalogue that changes: a directory that one process writes and others read.

    Args:
        path: The directory.
        create: Make a new one at `path`, where nothing may be yet: from an `Index` (its clusters are taken as they are,
            without tree, codes and sketch), from vectors (whatever `build` takes), or empty, from its dimensions.
        read_only: Read what another process writes; follow it with `refresh()`.
        compaction: "background": fold changes into the clusters in a thread, when many have come.  "manual": only when
            `compact()` is called.
        options: For a new catalogue.  With vectors those of `build`, such as ids and log_bias.  With a dimension:
            log_bias=True and bias=True say that items have such, and dispersion as for `build`.

    Raises:
        NotAnIndexError: There is no catalogue at the path.
        SaveError: Another process writes it, or the disk cannot be written.
    """
    place = os.path.realpath(os.fsdecode(path))
    check_choice(compaction, "compaction", ("background", "manual"))
    if check_flag(read_only, "read_only"):
        if create is not None:
            raise InputError("a new catalogue cannot be read_only; leave one of the two out.")
        return LiveIndex(place, Log.open(place, write=False), None)
    if create is not None:
        return _create(place, create, compaction, options)
    if options:
        raise InputError(f"{min(options)} is for a new catalogue; pass create=... as well, or leave it out.")
    # Asked first: the lock must not leave a file in a directory that is something else.
    Log.open(place, write=False).close()
    return _locked(place, lambda: Log.open(place, write=True), compaction)


def is_catalogue(path: str | os.PathLike[str]) -> bool:
    """Whether there is a catalogue at the path."""
    return os.path.isfile(os.path.join(path, DATABASE))


def _locked(place: str, connect: Any, compaction: str) -> LiveIndex:
    lock = WriterLock(place)
    try:
        return LiveIndex(place, connect(), lock, compaction=compaction)
    except BaseException:
        lock.release()
        raise


def _create(place: str, source: Any, compaction: str, options: dict[str, Any]) -> LiveIndex:
    if os.path.exists(place) and (not os.path.isdir(place) or os.listdir(place)):
        what = "a catalogue already" if os.path.isfile(os.path.join(place, DATABASE)) else "something else"
        raise InputError(f"{place} holds {what}; leave create out to open it, or choose another path.")
    if isinstance(source, Index) and options:
        raise InputError(f"{min(options)} is decided by the index; leave it out, or pass vectors.")
    empty = isinstance(source, (int, np.integer)) and not isinstance(source, bool)
    index = None if empty else source if isinstance(source, Index) else build(source, **options)
    if index is not None and index.parameters.get("storage", "float32") != "float32":
        raise InputError("a catalogue that changes keeps float32 vectors; create it from an index that does, too.")
    parameters = _empty(int(source), options) if index is None else _of(index)
    made = not os.path.isdir(place)
    try:
        os.makedirs(place, exist_ok=True)
        return _locked(place, lambda: _fill(place, index, parameters), compaction)
    except BaseException as error:
        if made:
            shutil.rmtree(place, ignore_errors=True)
        else:
            for name in os.listdir(place):
                with suppress(OSError):
                    inside = os.path.join(place, name)
                    shutil.rmtree(inside) if os.path.isdir(inside) else os.remove(inside)
        if isinstance(error, OSError):
            raise SaveError(f"{place} could not be made ({error}); check its permissions and the disk.") from error
        raise


def _fill(place: str, index: Index | None, parameters: Json) -> Log:
    """Write the first generation; the database comes last, and makes it a catalogue."""
    if index is None:
        return Log.create(place, parameters, None)
    name, segment = f"generation-{0:012d}", f"segment-{0:012d}"
    index._contents.check()
    contents = index._contents if index._contents.settle is None else index._contents.settle()
    made, rows = from_index(_complete(contents, parameters), parameters)
    write_generation(place, name, made, rows, {segment: len(rows)})
    return Log.create(place, {**parameters, "ids": made.parameters["ids"]}, name)


def _complete(contents: Any, parameters: Json) -> Any:
    """Contents of an index, with the arrays that those of early versions lack."""
    if "reach" in contents.arrays and "outlier_positions" in contents.arrays:
        return contents
    raise InputError("the index was saved by an early version; build it again, or pass its vectors.")


def _of(index: Index) -> dict[str, Any]:
    held = index.parameters
    names = ("dim", "bias", "log_bias", "dispersion", "rank", "seed", "softindex")
    parameters = {name: held[name] for name in names}
    ids = "strings" if held["ids"] == "strings" else "integers"
    return {**parameters, "ids": ids, **PLAIN}


def _empty(dim: int, options: dict[str, Any]) -> dict[str, Any]:
    allowed = {"log_bias", "bias", "dispersion", "seed"}
    strange = options.keys() - allowed
    if strange:
        raise InputError(f"{min(strange)} is not for an empty catalogue; pass any of {', '.join(sorted(allowed))}.")
    width = check_count(dim, "create")
    flags = {name: check_flag(options.get(name, False), name) for name in ("bias", "log_bias")}
    form = choose_dispersion(options.get("dispersion", "auto"), width + flags["bias"])
    rank = form if isinstance(form, int) else 0
    kind = "rank" if rank else form
    return {
        "dim": width,
        **flags,
        "dispersion": kind,
        "rank": rank,
        "seed": options.get("seed", 0),
        "softindex": "",
        "ids": None,
        **PLAIN,
    }
