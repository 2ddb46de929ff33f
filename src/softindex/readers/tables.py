"""Shared by the readers of all formats: the request, the result, and the choice of the array to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from softindex import optional
from softindex.errors import InputError

BLOCK_VALUES = 1 << 20
"""Values converted at a time: 4 MB of float32 stays near the cache and bounds the working memory."""

PREFERRED_NAMES = ("vectors", "embeddings", "weight", "train")
"""Names that identify the array of items; ann-benchmarks files call it "train"."""

EXPANSION = 1032
"""Bytes that one byte of a deflated file can become; a file that states more than this holds no such data."""

LISTED_NAMES = 20
"""An error lists at most this many arrays: a model checkpoint may hold thousands."""


class Request(NamedTuple):
    """One file to read.

    `name` is the array or column after `::`; `want_ids` is False when the caller has ids; `want_queries` is True to
    read the queries of the file too.
    """

    path: str
    name: str | None
    want_ids: bool
    want_queries: bool = False


class Loaded(NamedTuple):
    """The contents of a file: vectors of any dtype, ids as stored (not checked yet) or None, queries (m, d) or None."""

    vectors: NDArray[Any]
    ids: Any = None
    queries: NDArray[Any] | None = None


class Entry(NamedTuple):
    """One array of a file, as an error message describes it.

    `is_matrix` is True for a 2-D array of floats, `is_counts` for one of integers: it serves where there is no other.
    """

    description: str
    is_matrix: bool
    is_counts: bool = False


def choose(path: str, entries: Mapping[str, Entry], name: str | None) -> str:
    """Return the name of the array with the vectors: the requested one, the only one, or a preferred name."""
    if name is not None:
        if name not in entries:
            raise InputError(f"{path} holds nothing named {name!r}; it holds {_listing(entries)}.")
        return name
    candidates = [key for key, entry in entries.items() if entry.is_matrix]
    candidates = candidates or [key for key, entry in entries.items() if entry.is_counts]
    if len(candidates) == 1:
        return candidates[0]
    for preferred in PREFERRED_NAMES:
        if preferred in candidates:
            return preferred
    found = f"{len(candidates)} matrices" if candidates else "no matrix"
    raise InputError(
        f"{path} holds {found}, so it is not clear which array has one row per item; "
        f"pass '{path}::name'. It holds {_listing(entries)}."
    )


def _listing(entries: Mapping[str, Entry]) -> str:
    shown = [f"{key} {entry.description}" for key, entry in list(entries.items())[:LISTED_NAMES]]
    if len(entries) > len(shown):
        shown.append(f"and {len(entries) - len(shown)} more")
    return ", ".join(shown) or "no arrays at all"


def need(package: str, path: str) -> Any:
    """Import an optional package; MissingDependencyError says how to install it."""
    return optional.need(package, user=f"reading {path}", extra="data")
