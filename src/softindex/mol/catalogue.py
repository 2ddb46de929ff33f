"""Catalogue: the items of a learned similarity, ready to be searched and sampled without torch."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from softindex.arguments import check_count, check_ids, check_seed, check_temperature, check_threads
from softindex.blas import blas_threads
from softindex.errors import CorruptIndexError, InputError, MethodError, show
from softindex.ids import IdMap, RowIds, id_map, id_map_from_arrays
from softindex.mol.components import check_item_side
from softindex.mol.engine import Batch, Engine, Lists
from softindex.mol.form import Form, ItemSide, LearnedSimilarity, check_form, form_arrays, form_from_arrays
from softindex.mol.queries import encode
from softindex.mol.retrieval import METHODS, Found, Plan, rank, retrieve
from softindex.mol.sampling import LAWS, Drawn, draw_among, draw_exactly
from softindex.records import Doubles, Floats, Ids, Integers, Stored
from softindex.restrictions import exclusions
from softindex.store import load as load_stored
from softindex.store import save as save_stored

__all__ = ["Catalogue", "LearnedDraws", "LearnedTopK", "build", "load"]

KIND = "mol-catalogue"
BLOCK = 8192
"""Items that a similarity is given at a time: its activations must not fill the memory."""
USUAL = 500
"""Candidates of a first stage where the caller names none, at least."""


class LearnedTopK(NamedTuple):
    """What `Catalogue.top_k` returns; one row per query (one query alone: no row axis)."""

    ids: Ids
    """(b, k) the best items, best first; equal ones in the order in which they are stored."""
    scores: Doubles
    """(b, k) their similarities."""
    gap: Doubles | float
    """(b,) no item left out scores more than this above the last of the results; 0: these are the k best."""
    proven: Any
    """(b, k) True: this item is among the k best of all."""
    items_scored: Integers | int
    """(b,) items whose similarity was computed."""


class LearnedDraws(NamedTuple):
    """What `Catalogue.sample` returns; one row per query (one query alone: no row axis)."""

    ids: Ids
    """(b, n) the drawn items."""
    scores: Doubles
    """(b, n) their similarities, before they are divided by the temperature."""
    error: Doubles | float
    """(b,) no larger is the total variation to the softmax of all similarities; less than 1e-9 is called 0."""
    items_scored: Integers | int
    """(b,) items whose similarity was computed."""
    method: str
    """The law drawn from."""
    seed: int
    """The seed that gives these draws again."""


class _Items(NamedTuple):
    components: Floats
    gates: Floats | None
    averages: Floats
    lengths: Doubles
    """(P_x,) the largest length of each component."""
    gate_sizes: Doubles
    """(P,) the largest size of each gate; empty where there are none."""


class _State(NamedTuple):
    """What a catalogue holds at one time.  Changes replace it as a whole, so that a search never sees half of one."""

    items: _Items
    ids: IdMap
    next_row: int
    """The number of the next item where rows are numbered; -1 where the caller names items."""
    engine: Engine

    @classmethod
    def of(cls, form: Form, items: _Items, ids: IdMap, next_row: int) -> _State:
        """The state of these items."""
        engine = Engine(form, items.components, items.gates, items.averages, (items.lengths, items.gate_sizes))
        return cls(items, ids, next_row, engine)

    @property
    def n(self) -> int:
        """Items."""
        return len(self.items.components)


class Catalogue:
    """Components and gates of items under one similarity.  Made by `softindex.mol.build` or `load`.

    Any number of threads may search and sample while one adds or removes: each call sees the items of one moment.
    """

    __slots__ = ("_form", "_similarity", "_state")

    def __init__(
        self, form: Form, items: _Items, ids: IdMap, next_row: int, similarity: LearnedSimilarity | None
    ) -> None:
        self._form, self._similarity = form, similarity
        self._state = _State.of(form, items, ids, next_row)

    def __len__(self) -> int:
        return self._state.n

    def __repr__(self) -> str:
        form = self._form
        return (
            f"<softindex.mol.Catalogue: {len(self)} items, {form.query_components} x {form.item_components} components "
            f"of {form.component_dim}>"
        )

    @property
    def form(self) -> Form:
        """The similarity's sizes, temperature and weights."""
        return self._form

    @property
    def ids(self) -> Ids:
        """(n,) in the order in which the items are stored."""
        state = self._state
        return state.ids.at(np.arange(state.n))

    @property
    def averages(self) -> Floats:
        """(n, d) the mean of each item's components: what a first stage of your own searches, on any index."""
        return self._state.items.averages

    def average_queries(self, queries: Any, *, users: Any = None) -> Floats:
        """(b, d) the sum of each query's components: what such a first stage is asked with."""
        with blas_threads(1):
            side = encode(self._form, queries, users)
        summed = np.ascontiguousarray(side.components.sum(axis=1))
        return summed[0] if side.single else summed

    def top_k(
        self,
        queries: Any,
        k: int,
        *,
        method: str = "exact",
        candidates: Any = None,
        tolerance: float | None = None,
        exclude: Any = None,
        users: Any = None,
        threads: int | None = None,
    ) -> LearnedTopK:
        """Return the k items most similar to each query, best first.

        queries (b, D) or (D,), as the similarity takes them; where it takes components, (b, P_q, d) or (P_q, d).

        - "brute-force": every item is scored.
        - "two-pass": every item whose largest logit reaches a score that k items are known to have.
        - "exact": the one of these two that a look at some items promises to be faster; both are proven.
        - "per-embedding": the `candidates` best items of each pair of components, k where none are named.
        - "average": the `candidates` items whose mean component is nearest to the sum of the query's; where none are
          named 500, or 4 k if that is more.
        - "combined": both; `candidates` may be a pair of numbers, for each pair and by the average, and where none are
          named it is k / 10 and as above.  One number stands for both, so that more items are scored than it says.

        Where there is one pair of components its logit is the score, and every method scores all items.

        `tolerance`: score more and more candidates until the gap is no larger, but no more than `candidates` (None:
        up to all items); `gap` says whether it was reached.  exclude: ids for all queries alike, or one sequence per
        query.  users (b,): for a similarity with a component for the user.
        """
        count, state = check_count(k, "k"), self._state
        plan = _plan(state.n, count, method, candidates, tolerance, check_threads(threads))
        batch, single = self._batch(state, queries, users, exclude)
        _check_left(batch, count)
        return _result(state.ids, retrieve(state.engine, batch, plan), single)

    def rank(self, queries: Any, ids: Any, k: int, *, users: Any = None, threads: int | None = None) -> LearnedTopK:
        """Return the k best of candidates that you found yourself: ids (b, m), a sequence per query, or (m,) for all.

        Equal ids count once.  The gap allows for the largest score that any other item might have.
        """
        count, workers, state = check_count(k, "k"), check_threads(threads), self._state
        batch, single = self._batch(state, queries, users, None)
        listed = _positions(state, ids, len(batch), "the list of ids")
        parts = listed.split(listed.positions)
        if len(parts) == 1:
            parts = parts * len(batch)
        if min(len(part) for part in parts) < count:
            raise InputError(f"k is {count} but a query has fewer candidates; pass at least k different ids for each.")
        plan = Plan("average", count, 0, 1, None, workers)
        return _result(state.ids, rank(state.engine, batch, parts, plan), single)

    def sample(
        self,
        queries: Any,
        n: int = 1,
        *,
        temperature: float = 1.0,
        method: str = "exact",
        candidates: int | None = None,
        exclude: Any = None,
        users: Any = None,
        seed: int | None = None,
        threads: int | None = None,
    ) -> LearnedDraws:
        """Draw n items for each query from the softmax of the similarities divided by the temperature.

        - "exact": an item is proposed by the softmax of the largest logits and kept with the chance that its true
          weight has of that; where too few are kept, all items are scored.
        - "candidates": from the best `candidates` items by the average only, 500 where none are named; `error` bounds
          the total variation.

        The same seed gives the same draws, of a query in any batch; copies of a query in a batch draw differently.  On
        CPUs of another kind scores differ in their last digits, and with them a rare draw.  A draw's log-probability is
        not known: nothing but the drawn items is scored where that can be helped.
        """
        count, heat, key = check_count(n, "n"), check_temperature(temperature), check_seed(seed)
        if not isinstance(method, str) or method not in LAWS:
            raise MethodError(f"there is no method {show(method)}; use one of {', '.join(LAWS)}.")
        if candidates is not None and method == "exact":
            raise InputError('candidates are for method "candidates" only; leave them out.')
        most = USUAL if candidates is None else check_count(candidates, "candidates")
        workers, state = check_threads(threads), self._state
        batch, single = self._batch(state, queries, users, exclude)
        _check_left(batch, 1)
        if method == "exact":
            drawn = draw_exactly(state.engine, batch, count, heat, key, workers)
        else:
            drawn = draw_among(state.engine, batch, count, heat, min(most, state.n), key, workers)
        return _draws(state.ids, drawn, single, method, key)

    def add(self, items: Any, ids: Any = None) -> None:
        """Add items, as the similarity takes them; of a loaded catalogue, an `ItemSide` of components and gates.

        ids: one for each where the catalogue has ids of its own; row numbers go on by themselves.  The components of
        all items are copied: add many at a time.
        """
        form, state = self._form, self._state
        if isinstance(items, ItemSide):
            components, gates = check_item_side(form, items)
        elif self._similarity is None:
            raise InputError(
                "this catalogue was loaded without the similarity that encodes items; pass similarity.item_side(items)."
            )
        else:
            components, gates = _encode_items(self._similarity, form, items)
        m, old = len(components), state.items
        names = _names_with(state, check_ids(ids, m), m)
        joined = np.concatenate([old.components, components])
        both = None if old.gates is None or gates is None else np.concatenate([old.gates, gates])
        next_row = state.next_row + m if state.next_row >= 0 else -1
        self._state = _State.of(form, _items(joined, both), names, next_row)

    def remove(self, ids: Any) -> None:
        """Remove the items with these ids, copying the others; nothing changes where one of them is unknown."""
        state = self._state
        if isinstance(ids, (set, frozenset)):
            ids = list(ids)
        wanted = ids if isinstance(ids, (list, tuple, np.ndarray)) else [ids]
        gone = np.unique(state.ids.find(wanted))
        kept = np.setdiff1d(np.arange(state.n), gone)
        if len(kept) == 0:
            raise InputError("that would remove every item; keep at least one.")
        old = state.items
        left = _items(old.components[kept], None if old.gates is None else old.gates[kept])
        self._state = _State.of(self._form, left, _named(state.ids.at(kept)), state.next_row)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the catalogue to a directory, atomically: killed at any moment, the old or the new one is there."""
        facts, arrays = form_arrays(self._form)
        items, ids, next_row, _ = state = self._state
        arrays |= {"components": items.components, "averages": items.averages, "lengths": items.lengths}
        if items.gates is not None:
            arrays |= {"gates": items.gates, "gate_sizes": items.gate_sizes}
        arrays |= ids.arrays()
        save_stored(path, Stored(KIND, {**facts, "ids": ids.kind, "next_row": next_row, "n": state.n}, arrays))

    def _batch(self, state: _State, queries: Any, users: Any, exclude: Any) -> tuple[Batch, bool]:
        with blas_threads(1):
            side = encode(self._form, queries, users)
            excluded = _positions(state, exclude, len(side.components), "exclude")
            return state.engine.batch(side, excluded), side.single


def _positions(state: _State, ids: Any, b: int, name: str) -> Lists:
    """Where items stand: one row for all of b queries, or one for each; name: what the caller calls the ids."""
    offsets, positions = exclusions(state.ids, ids, b, name)
    if len(positions) and not (positions.min() >= 0 and positions.max() < state.n):
        raise CorruptIndexError("an id leads to no item: the catalogue is damaged; run softindex verify on it.")
    return Lists(offsets, positions)


def _names_with(state: _State, ids: Ids | None, m: int) -> IdMap:
    """The map of the present ids and of m more."""
    old = state.ids.at(np.arange(state.n))
    if ids is None:
        if state.next_row < 0:
            raise InputError("this catalogue has ids of its own; pass ids for the new items.")
        if isinstance(state.ids, RowIds):
            return _row_ids(state.n + m)
        ids = np.arange(state.next_row, state.next_row + m)
    elif state.next_row >= 0:
        raise InputError("this catalogue numbers its items by itself; add them without ids.")
    if ids.dtype.kind != old.dtype.kind:
        raise InputError("the new ids are of another type than those of the catalogue; pass ids of the same type.")
    return _named(check_ids(np.concatenate([old, ids]), state.n + m))


def _plan(n: int, k: int, method: Any, candidates: Any, tolerance: Any, threads: int) -> Plan:
    if not isinstance(method, str) or method not in METHODS:
        raise MethodError(f"there is no method {show(method)}; use one of {', '.join(METHODS)}.")
    if method in ("exact", "brute-force", "two-pass"):
        if candidates is not None or tolerance is not None:
            raise InputError(f"method {method!r} is exact and takes neither candidates nor a tolerance.")
        return Plan(method, k, 0, 0, None, threads)
    allowed = None
    if tolerance is not None:
        number = isinstance(tolerance, (float, int, np.floating, np.integer)) and not isinstance(tolerance, bool)
        if not number or not 0 <= tolerance < np.inf:
            raise InputError(f"tolerance is {show(tolerance)}; expected one number from 0.")
        allowed = float(tolerance)
    per_pair, by_average = _counts(k, method, candidates, n, allowed)
    return Plan(method, k, per_pair, by_average, allowed, threads)


def _check_left(batch: Batch, k: int) -> None:
    short = np.flatnonzero(batch.left < k)
    if len(short):
        row = int(short[0])
        raise InputError(
            f"{k} items are asked for but {batch.left[row]} are left for query {row}; ask for at most that many, "
            "or exclude fewer."
        )


def _result(ids: IdMap, found: Found, single: bool) -> LearnedTopK:
    parts = (ids.at(found.positions), found.scores, found.gap, found.proven, found.scored)
    return LearnedTopK(*(part[0] for part in parts)) if single else LearnedTopK(*parts)


def _draws(ids: IdMap, drawn: Drawn, single: bool, method: str, key: int) -> LearnedDraws:
    first = 0 if single else slice(None)
    return LearnedDraws(
        ids.at(drawn.positions)[first],
        drawn.scores[first],
        drawn.error[first],
        drawn.scored[first],
        method,
        key,
    )


def _counts(k: int, method: str, candidates: Any, n: int, tolerance: float | None) -> tuple[int, int]:
    """Candidates for each pair and by the average."""
    wants_pairs, wants_average = method != "average", method != "per-embedding"
    if isinstance(candidates, (tuple, list)):
        if method != "combined" or len(candidates) != 2:
            raise InputError(
                f"candidates are {show(candidates)}; expected one number, or for method 'combined' a pair."
            )
        per_pair, by_average = (check_count(count, "candidates") for count in candidates)
    elif candidates is not None:
        per_pair = by_average = check_count(candidates, "candidates")
    elif tolerance is not None:
        per_pair = by_average = n
    else:
        per_pair, by_average = k if method == "per-embedding" else max(1, k // 10), max(USUAL, 4 * k)
    counts = per_pair * wants_pairs, by_average * wants_average
    if max(counts) < k:
        raise InputError(f"candidates are {show(candidates)} but k is {k}; retrieve at least k candidates.")
    return min(counts[0], n), min(counts[1], n)


def _items(components: Floats, gates: Floats | None) -> _Items:
    averages = np.ascontiguousarray(components.mean(axis=1), np.float32)
    squares = np.zeros(components.shape[1])
    for begin in range(0, len(components), BLOCK):
        part = components[begin : begin + BLOCK]
        squares = np.maximum(squares, np.einsum("npd,npd->np", part, part, dtype=np.float64).max(axis=0))
    sizes = np.zeros(0) if gates is None else np.maximum(gates.max(axis=0), -gates.min(axis=0)).astype(np.float64)
    return _Items(components, gates, averages, np.sqrt(squares) * (1 + 1e-12), sizes)


def _row_ids(n: int) -> IdMap:
    rows = np.arange(n, dtype=np.int64)
    return id_map(None, rows, rows)


def _named(ids: Ids | None) -> IdMap:
    assert ids is not None
    rows = np.arange(len(ids), dtype=np.int64)
    return id_map(ids, rows, rows)


def _length(items: Any) -> int:
    """How many items there are; InputError where they cannot be cut into blocks."""
    try:
        n = len(items)
        items[:0]
    except (TypeError, KeyError, IndexError) as error:
        raise InputError(
            f"items are a {type(items).__name__}; pass an array, a tensor or a sequence, one entry an item."
        ) from error
    return n


def _encode_items(similarity: LearnedSimilarity, form: Form, items: Any) -> tuple[Floats, Floats | None]:
    """Components and gates of all items, block by block."""
    n = _length(items)
    if n == 0:
        raise InputError("there are no items; pass at least one.")
    components = np.empty((n, form.item_components, form.component_dim), np.float32)
    gates = np.empty((n, form.pairs), np.float32) if form.item_gates else None
    for begin in range(0, n, BLOCK):
        part = items[begin : begin + BLOCK]
        made, weights = check_item_side(form, similarity.item_side(part), len(part), begin)
        components[begin : begin + BLOCK] = made
        if gates is not None:
            gates[begin : begin + BLOCK] = weights
    return components, gates


def build(similarity: LearnedSimilarity, items: Any, *, ids: Any = None) -> Catalogue:
    """Compute what does not depend on the query, once: the components of all items, their gates and their means.

    similarity: a `MixtureOfLogits`, `DotProduct` or `MaxSim`, or anything with the same two methods.  items: whatever
    its `item_side` takes, a block at a time.  ids: integers or strings, one per item; row numbers when None.
    """
    if not (hasattr(similarity, "form") and hasattr(similarity, "item_side")):
        raise InputError(
            f"a {type(similarity).__name__} is no similarity; pass an object with form() and item_side(items)."
        )
    form = check_form(similarity.form())
    names = check_ids(ids, _length(items)) if ids is not None else None
    components, gates = _encode_items(similarity, form, items)
    made = _items(components, gates)
    if names is None:
        return Catalogue(form, made, _row_ids(len(components)), len(components), similarity)
    return Catalogue(form, made, _named(names), -1, similarity)


def load(path: str | os.PathLike[str], *, mmap: bool = True) -> Catalogue:
    """Open a saved catalogue; mmap: in milliseconds whatever its size, pages are read when first used."""
    stored = load_stored(path, mmap=mmap, kind=KIND)
    facts, arrays = stored.parameters, stored.arrays
    try:
        form, n = form_from_arrays(facts, arrays), int(facts["n"])
        gates = arrays["gates"] if form.item_gates else None
        sizes = np.asarray(arrays["gate_sizes"]) if form.item_gates else np.zeros(0)
        items = _Items(arrays["components"], gates, arrays["averages"], np.asarray(arrays["lengths"]), sizes)
        if (
            items.components.shape != (n, form.item_components, form.component_dim)
            or items.averages.shape != (n, form.component_dim)
            or items.lengths.shape != (form.item_components,)
            or (gates is not None and (gates.shape != (n, form.pairs) or sizes.shape != (form.pairs,)))
        ):
            raise ValueError("the arrays do not fit each other")
        names = id_map_from_arrays(str(facts["ids"]), arrays)
        return Catalogue(form, items, names, int(facts["next_row"]), None)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(
            f"this is not a whole catalogue ({error}); restore a copy or build it again."
        ) from error
