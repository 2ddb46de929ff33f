"""Check the arrays of an id map before they are followed: positions, order and text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from softindex.fields import damaged
from softindex.ids import LONGEST, IdMap, IntegerIds, RowIds, StringIds
from softindex.kernels import hash_strings

__all__ = ["check_id_map"]

BLOCK_IDS = 1 << 16
"""Ids decoded at a time."""


def check_id_map(ids: IdMap) -> None:
    """Raise CorruptIndexError unless every position has one id and every id is found at its position: O(n)."""
    problem = next(_problems(ids), None)
    if problem is not None:
        raise damaged(problem)


def _problems(ids: IdMap) -> Iterator[str]:
    # Where the map from positions to ids and back is the identity, neither can hold a position twice.
    n = len(ids.positions)
    if not (ids.positions.min() >= 0 and ids.positions.max() < n):
        yield "id_positions lead outside the items"
    elif isinstance(ids, RowIds):
        inside = ids.rows.min() >= 0 and ids.rows.max() < n
        if not (inside and np.array_equal(ids.positions[ids.rows], np.arange(n))):
            yield "id_rows and id_positions contradict each other"
    elif isinstance(ids, IntegerIds):
        if not ((ids.keys[1:] > ids.keys[:-1]).all() and np.array_equal(ids.ids[ids.positions], ids.keys)):
            yield "id_keys are not the ids in increasing order, as id_positions has them"
    else:
        yield from _text_problems(ids)


def _text_problems(ids: StringIds) -> Iterator[str]:
    begins = np.concatenate([np.zeros(1, np.int64), ids.ends[:-1]])
    # Compared before they are subtracted: a difference of two huge numbers overflows.
    if not ((begins >= 0).all() and (begins <= ids.ends).all() and int(ids.ends[-1]) == len(ids.text)):
        yield "id_ends are not the ends of the ids in their text"
    elif (ids.ends - begins > LONGEST).any() or not _is_text(ids, begins):
        yield "id_text is not the text of the ids"
    elif not _are_found(ids):
        yield "id_hashes are not those of the ids, in increasing order"
    elif not _are_distinct(ids):
        yield "two items have the same id"


def _are_found(ids: StringIds) -> bool:
    """Whether the hashes are those of the ids; old files have no key, and their ids are hashed again when looked up."""
    if ids.key is None:
        return True
    hashes = np.empty(len(ids.ends), np.uint64)
    hash_strings(ids.text, ids.ends, ids.key, hashes)
    return np.array_equal(hashes[ids.positions], ids.hashes) and bool((ids.hashes[1:] >= ids.hashes[:-1]).all())


def _is_text(ids: StringIds, begins: NDArray[np.int64]) -> bool:
    """Whether every id is UTF-8 on its own: the text is, and no id begins inside a character."""
    inside = begins[begins < len(ids.text)]
    if ((ids.text[inside] & 0xC0) == 0x80).any():
        return False
    for first in range(0, len(begins), BLOCK_IDS):
        last = min(first + BLOCK_IDS, len(begins)) - 1
        try:
            bytes(ids.text[begins[first] : ids.ends[last]]).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return False
    return True


def _are_distinct(ids: StringIds) -> bool:
    """Ids of different hashes differ, so that only those of equal hashes are read, where there are hashes."""
    shared = np.arange(len(ids.ends))
    if ids.key is not None:
        starts = np.flatnonzero(ids.hashes[1:] == ids.hashes[:-1])
        shared = ids.positions[np.unique(np.concatenate([starts, starts + 1]))].astype(np.int64)
    texts = ids.at(shared).tolist() if len(shared) else []
    return len(set(texts)) == len(texts)
