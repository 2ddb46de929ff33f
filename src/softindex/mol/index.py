"""MixtureIndex: the items of a learned similarity, ready for search and sampling without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from softindex.arguments import (
    check_count,
    check_flag,
    check_seed,
    check_threads,
)
from softindex.blas import blas_threads
from softindex.calls import spread_positions
from softindex.errors import InputError
from softindex.kernels import Guard
from softindex.locks import ForkLock
from softindex.mol import storage
from softindex.mol.calls import draws_record, make_batch, top_k_record
from softindex.mol.items import encode_items
from softindex.mol.options import check_available, check_draws, check_search, check_slate
from softindex.mol.plans import Counts, SearchPlan
from softindex.mol.queries import encode
from softindex.mol.retrieval import rank, retrieve
from softindex.mol.sampling import DrawOptions, draw_exactly, draw_from_candidates, log_probabilities
from softindex.mol.snapshot import Snapshot
from softindex.mol.spec import LearnedSimilarity, SimilaritySpec
from softindex.mol.storage import KIND
from softindex.progress import reporting
from softindex.records import Doubles, Draws, Floats, Ids, Stored, TopK
from softindex.restrictions import Missing, find_some
from softindex.store import check_guards
from softindex.store import save as save_stored
from softindex.temperatures import Temperature, check_each_temperature

__all__ = ["KIND", "MixtureIndex", "from_stored"]

SearchMethod = Literal["exact", "brute-force", "two-pass", "per-embedding", "average", "clusters", "combined"]
SampleMethod = Literal["exact", "candidates"]
Unknown = Literal["error", "ignore"]


class MixtureIndex:
    """Items under a learned similarity.  Made by `softindex.mol.build` or `softindex.load`.

    Any number of threads may search, sample, add and remove at once.  Each search sees the items of one moment.
    """

    __slots__ = ("_current", "_guards", "_lock", "_similarity")

    def __init__(
        self, snapshot: Snapshot, similarity: LearnedSimilarity | None = None, guards: Mapping[str, Guard] | None = None
    ) -> None:
        self._current, self._similarity, self._guards = snapshot, similarity, guards or {}
        # Changes start from the current snapshot: two at a time would lose one of them.
        self._lock = ForkLock()

    def __len__(self) -> int:
        return self._current.n

    def __repr__(self) -> str:
        spec = self.spec
        clusters = self._current.clusters
        return (
            f"<softindex.mol.MixtureIndex: {len(self)} items{f' in {len(clusters)} clusters' if clusters else ''}, "
            f"{spec.query_components} x {spec.item_components} components of {spec.component_dim}>"
        )

    def __reduce__(self) -> str:
        raise TypeError(
            "a MixtureIndex cannot be pickled; save it with index.save(path) and open it with softindex.load(path)."
        )

    @property
    def _snapshot(self) -> Snapshot:
        """The current items; the first call checks that large mapped arrays are as they were saved."""
        if self._guards:
            check_guards(self._guards)
            self._guards = {}
        return self._current

    @property
    def spec(self) -> SimilaritySpec:
        """Sizes, temperature and weights of the similarity."""
        return self._current.spec

    @property
    def ids(self) -> Ids:
        """(n,) ids in storage order."""
        return self._current.all_ids()

    @property
    def averages(self) -> Floats:
        """(n, d) float32, the mean component of each item, in storage order.

        Put them into any inner-product index to use it as a first stage for `rank`.
        """
        return self._snapshot.items.averages

    def average_queries(self, queries: ArrayLike, *, users: ArrayLike | None = None) -> Floats:
        """Return the sum of each query's components: the query vectors for an index of `averages`.

        Args:
            queries: Queries as for `top_k`.
            users: User numbers as for `top_k`.

        Returns:
            (b, d) float32; (d,) for a single query.
        """
        with blas_threads(1):
            side = encode(self.spec, queries, users)
        summed = np.ascontiguousarray(side.components.sum(axis=1))
        return summed[0] if side.single else summed

    def top_k(
        self,
        queries: ArrayLike,
        k: int,
        *,
        method: SearchMethod = "exact",
        candidates: int | tuple[int, int] | None = None,
        gap: float | None = None,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown = "error",
        users: ArrayLike | None = None,
        threads: int | None = None,
    ) -> TopK:
        """Return the k items most similar to each query, best first, with proofs.

        The exact methods always find the k best:

        - "brute-force" scores every item.
        - "two-pass" scores a few good items, then every item whose largest logit reaches the k-th best score so far.
        - "exact" looks at a few items to predict which of these two is faster, and uses that one.

        The approximate methods score candidates only:

        - "per-embedding": the best items of each pair of components.
        - "average": the items whose mean component has the largest product with the sum of the query's components.
        - "combined": both.
        - "clusters": the best items of the most promising clusters, by scores expanded around their centres.

        With one pair of components the logit is the score, and every method scores all items.

        Args:
            queries: Queries (b, D) or (D,) as the similarity takes them; components (b, P_q, d) or (P_q, d) where it
                takes components.
            k: Number of items to return.
            method: How to search.
            candidates: Number of candidates: for each pair with "per-embedding" (default k; fewer are enough if the
                pairs together have k different ones), in total with "average" (default 500, or 4 k if that is more) and
                "clusters" (500 or 20 k).  "combined" takes two numbers (k / 10 and 500 or 4 k); one stands for both.
            gap: Add candidates to the default number of them until the gap of the result is at most this, or
                `candidates` (all items, if you pass none) are used up.  Approximate methods only.
            exclude: Ids not to return, for all queries or one sequence per query; or booleans in the order of `ids`.
            allow: The only ids to return, in the same forms.
            unknown: What to do with ids that the index does not hold: "error" or "ignore".
            users: (b,) user numbers, for a similarity with a user component.
            threads: Number of threads; None uses every CPU.

        Returns:
            Ids, scores (float64) and proofs, (b, k) and (b,); without the first axis for a single query.

        Raises:
            InputError: When an argument is invalid, or fewer than k items are left.
            MethodError: When there is no such method.
            UnknownIdError: When an id is not in the index, unless `unknown` is "ignore".
        """
        count, workers, snapshot = check_count(k, "k"), check_threads(threads), self._snapshot
        plan = check_search(snapshot, count, method, candidates=candidates, gap=gap, threads=workers)
        batch = make_batch(snapshot, queries, users, (exclude, allow, unknown))
        check_available(batch, count)
        return top_k_record(snapshot, retrieve(snapshot.scorer, batch, plan), batch.side.single)

    def rank(
        self, queries: ArrayLike, ids: Any, k: int, *, users: ArrayLike | None = None, threads: int | None = None
    ) -> TopK:
        """Return the k best of the candidates that you pass.

        The `gap` of the result allows for the largest score that any other item could have.

        Args:
            queries: Queries as for `top_k`.
            ids: Candidates: (m,) for all queries, (b, m), or one sequence per query.  Repeated ids count once.
            k: Number of items to return.
            users: User numbers as for `top_k`.
            threads: Number of threads; None uses every CPU.

        Returns:
            The result in the form of `top_k`.

        Raises:
            InputError: When an argument is invalid, or a query has fewer than k different candidates.
            UnknownIdError: When the index does not hold one of the ids.
        """
        count, workers, snapshot = check_count(k, "k"), check_threads(threads), self._snapshot
        batch = make_batch(snapshot, queries, users, (None, None, "error"))
        listed = snapshot.find(ids, len(batch), name="the list of ids")
        lists = listed.split(listed.positions)
        if len(lists) == 1:
            lists = lists * len(batch)
        for row, positions in enumerate(lists):
            if len(positions) < count:
                raise InputError(f"query {row} has {len(positions)} different ids but k is {count}; pass more ids.")
        plan = SearchPlan("average", count, Counts(by_average=1), None, workers)
        return top_k_record(snapshot, rank(snapshot.scorer, batch, lists, plan), batch.side.single)

    def sample(
        self,
        queries: ArrayLike,
        n: int = 1,
        *,
        temperature: Temperature,
        method: SampleMethod = "exact",
        candidates: int | None = None,
        replace: bool = True,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown = "error",
        users: ArrayLike | None = None,
        seed: int | None = None,
        threads: int | None = None,
    ) -> Draws:
        """Draw n items per query from the softmax of the scores divided by the temperature.

        - "exact" draws from this softmax itself, by rejection: it proposes items by their largest logit and scores only
          the proposals.  Where too many are rejected it scores all items.
        - "candidates" draws from the softmax of the best candidates only, found by clusters if there are any.

        On a CPU with other instructions, scores differ in their last digits, and so, rarely, do draws.

        Args:
            queries: Queries as for `top_k`.
            n: Number of draws per query.
            temperature: Divides the scores, on top of the similarity's own temperature; a number, or (b,).
            method: Which distribution to draw from.
            candidates: Number of candidates (default 500), for "candidates" only.
            replace: False: n different items.  Each is drawn from those that are left.
            exclude: As for `top_k`, like `allow` and `unknown`.
            users: User numbers as for `top_k`.
            seed: The same seed and query give the same draws in any batch; copies of a query in one call draw
                differently.  None draws a fresh seed.
            threads: Number of threads; None uses every CPU.

        Returns:
            Ids and scores (b, n), without the first axis for a single query.  `error` is a proven upper bound on the
            total variation from the softmax of all items that are not excluded (below 1e-9 it is reported as 0).
            `log_prob` is NaN and `log_partition` None for "exact", which does not score all items; the method
            `log_prob` does.  For "candidates", `log_prob` is that of the candidates' softmax, of each step without
            replacement; `log_partition` has log Z of the candidates as its value, and its bounds hold for log Z of all
            items that are not excluded.

        Raises:
            InputError: When an argument is invalid, or `exclude` leaves nothing to draw.
            MethodError: When there is no such method.
            UnknownIdError: When an id is not in the index, unless `unknown` is "ignore".
        """
        count, key, workers = check_count(n, "n"), check_seed(seed), check_threads(threads)
        name, most = check_draws(method, candidates)
        batch = make_batch(snapshot := self._snapshot, queries, users, (exclude, allow, unknown))
        t = check_each_temperature(temperature, len(batch))
        options = check_slate(DrawOptions(count, t, key, workers, check_flag(replace, "replace")), batch, name, most)
        if name == "exact":
            drawn = draw_exactly(snapshot.scorer, batch, options)
        else:
            drawn = draw_from_candidates(snapshot.scorer, batch, min(most, snapshot.n), options)
        return draws_record(snapshot, drawn, batch.side.single, name, key)

    def log_prob(
        self,
        queries: ArrayLike,
        ids: Any,
        *,
        temperature: Temperature,
        method: SampleMethod = "exact",
        candidates: int | None = None,
        replace: bool = True,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown = "error",
        users: ArrayLike | None = None,
        missing: Missing = "error",
        threads: int | None = None,
    ) -> Doubles:
        """Natural log of the probability that one draw of `sample` returns the id; or of the steps of slates.

        "exact" scores every item in float64, once per query; "candidates" scores the candidates.

        Args:
            queries: Queries as for `top_k`.
            ids: (b, m), or (m,) for all queries.
            temperature: As for `sample`, like `method`, `candidates`, `exclude`, `allow`, `unknown` and `users`.
            replace: False: each row of `ids` is an ordered slate, and step j is drawn from what the steps before it
                left.  The sum of a row is the log-probability of the slate.
            missing: "-inf": the log-probability of an id that the index does not hold; "error": refuse it.
            threads: Number of threads; None uses every CPU.

        Returns:
            (b, m) float64, or the shape of `ids` for one query; -inf for an id that cannot be drawn.
        """
        snapshot, workers = self._snapshot, check_threads(threads)
        name, most = check_draws(method, candidates)
        batch = make_batch(snapshot, queries, users, (exclude, allow, unknown))
        t, with_replacement = check_each_temperature(temperature, len(batch)), check_flag(replace, "replace")
        check_available(batch, 1)
        positions, absent = find_some(snapshot.ids, ids, missing)
        if absent is not None:
            positions[absent] = -1
        rows = spread_positions(positions, len(batch), batch.side.single)
        options = DrawOptions(1, t, 0, workers, with_replacement)
        chosen = None if name == "exact" else min(most, snapshot.n)
        result = log_probabilities(snapshot.scorer, batch, rows, options, chosen)
        return result.reshape(positions.shape) if batch.side.single else result

    def add(self, items: Any, ids: Any = None) -> None:
        """Add items.  Each call copies the components of all items, so add many at a time.

        Args:
            items: Items as the similarity takes them, or an `ItemSide`.  A loaded index has no item side: pass
                `similarity.item_side(items)`.
            ids: One id per item, of the type that the index has; None where ids are row numbers, which continue.

        Raises:
            InputError: When the items or ids are invalid.  The index does not change.
        """
        components, gates = encode_items(self._similarity, self.spec, items)
        with self._lock:
            self._current = self._snapshot.add(components, gates, ids)

    def remove(self, ids: Any) -> None:
        """Remove items.  Each call copies the components of the others, so remove many at a time.

        Args:
            ids: One id, or a sequence or set of ids.

        Raises:
            InputError: When no item would be left.  The index does not change.
            UnknownIdError: When the index does not hold one of the ids.  The index does not change.
        """
        with self._lock:
            self._current = self._snapshot.remove(ids)

    def save(self, path: str | os.PathLike[str], *, progress: bool = False) -> None:
        """Write the index to a directory, atomically: after a crash, the old or the new version is there.

        Args:
            path: Directory to write; an index there is replaced.
            progress: Show a progress bar on a terminal.

        Raises:
            SaveError: When the index cannot be written.
        """
        with reporting(progress) as report:
            saving = None if report is None else partial(report, "saving")
            save_stored(path, storage.to_stored(self._snapshot), progress=saving)


def from_stored(stored: Stored) -> MixtureIndex:
    """Return the index that was saved; CorruptIndexError if it is damaged."""
    check_guards(stored.guards, stored.guards.keys() - storage.LAZY)
    return MixtureIndex(storage.from_stored(stored), guards=stored.guards)
