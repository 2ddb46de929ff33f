"""Checks of a call over shards: what can be refused before anything is sent, and what only all answers tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from softindex.arguments import check_choice, check_count, check_room, check_share
from softindex.errors import InputError, MethodError, UnknownIdError, show
from softindex.laws import LAWS, TOP_K, TREE_METHODS, check_probes, find_law
from softindex.restrictions import DEFAULT_K, as_mask, id_rows
from softindex.sharded.questions import Answer, Chosen, Description

__all__ = ["check_drawing", "check_found", "check_left", "choose"]


def check_drawing(
    known: Description, shape: tuple[int, int], method: Any, probes: Any, tolerance: Any, part: tuple[Any, Any]
) -> tuple[float, int | None]:
    """Return the share of the nucleus, and the number of best items of "top-k"; part: top_p and k as given."""
    top_p, k = part
    if method in TREE_METHODS:
        flat = ", ".join(name for name in (*LAWS, TOP_K) if name not in TREE_METHODS)
        raise MethodError(f"{method} estimates no log Z, which shards are picked by; use one of {flat}.")
    find_law(method, known.parameters["dispersion"], False)
    check_probes(probes, tolerance, method, known.clusters)
    check_room(*shape)
    if k is not None and method != TOP_K:
        raise InputError(f"k is for method {TOP_K!r} only, but the method is {method!r}; leave k out.")
    best = None
    if method == TOP_K:
        best = min(known.items, DEFAULT_K if k is None else check_count(k, "k"))
    return 1.0 if top_p is None else check_share(top_p, "top_p"), best


def choose(b: int, exclude: Any, allow: Any, unknown: Any) -> Chosen:
    """What b queries may draw, for all shards."""
    rows = {}
    for name, wanted in (("exclude", exclude), ("allow", allow)):
        if wanted is not None and as_mask(wanted) is not None:
            raise InputError(f"{name} is a mask, but no shard knows the order of all items; pass ids.")
        listed = id_rows(wanted, b, name)
        rows[name] = None if all(row is None for row in listed) else listed
    word = check_choice("error" if unknown is None else unknown, "unknown", ("error", "ignore"))
    return Chosen(rows["exclude"], rows["allow"], word == "error")


def check_found(answers: Sequence[Answer], chosen: Chosen, ids: Any = None, missing: Any = "error") -> None:
    """Refuse ids that no shard holds."""
    strict = check_choice(missing, "missing", ("error", "-inf")) == "error"
    named = (("exclude", chosen.exclude), ("allow", chosen.allow), ("ids", [ids] if ids is not None else None))
    for place, (name, rows) in enumerate(named):
        masks: list[Any] = [one.known[place] for one in answers if one.known[place] is not None]
        if rows is None or not masks or (name == "ids" and not strict):
            continue
        absent = np.flatnonzero(~np.logical_or.reduce([np.ravel(mask) for mask in masks]))
        if not len(absent):
            continue
        flat = np.concatenate([np.ravel(np.asarray(row, object)) for row in rows if row is not None and len(row)])
        first = flat[absent[0]]
        if name == "ids":
            raise UnknownIdError(f"id {show(first)} is not in this index; pass ids that it contains.", first)
        advice = 'leave it out, or pass unknown="ignore"'
        raise UnknownIdError(f"id {show(first)} in {name} is not in this index; {advice}.", first)


def check_left(answers: Sequence[Answer], chosen: Chosen, n: int, *, best: bool = False) -> None:
    """Refuse n items that some query cannot have; best: they were to be the best."""
    left = np.sum([one.left for one in answers if one.left is not None], axis=0)
    short = np.flatnonzero(left < n)
    if not len(short):
        return
    row, count = int(short[0]), int(left[short[0]])
    by = "exclude leaves" if chosen.allow is None else "allow leaves"
    if chosen.allow is not None and chosen.exclude is not None:
        by = "allow and exclude leave"
    items = f"{count} item{'' if count == 1 else 's'}"
    if best:
        raise InputError(f"k is {n} but {by} {items} for query {row}; ask for at most that many.")
    if count == 0:
        raise InputError(f"{by} nothing to draw for query {row}; leave at least one item.")
    verb = "is" if count == 1 else "are"
    raise InputError(
        f"n is {n} but there {verb} {items} to draw without replacement for query {row}; ask for at most that many."
    )
