"""The index: wires the stages, one line a stage, and computes nothing itself."""

from __future__ import annotations

import os
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softindex.arguments import (
    check_count,
    check_flag,
    check_per_item,
    check_queries,
    check_seed,
    check_temperature,
    check_threads,
    check_vectors,
)
from softindex.codes import encode
from softindex.contents import KIND, Contents, describe, make_engine
from softindex.contents import from_stored as contents_from_stored
from softindex.contents import to_stored as contents_to_stored
from softindex.errors import CorruptIndexError, InputError, SoftindexError
from softindex.ids import id_map
from softindex.kernels import NativeLaw
from softindex.laws import (
    CERTIFIED,
    LAWS,
    TOP_K,
    check_confidence,
    check_estimates,
    check_probes,
    find_law,
    law_offset,
    log_partition_slack,
    tree_offset,
)
from softindex.moments import choose_dispersion, measure, measure_tree
from softindex.outliers import list_outliers
from softindex.partition import grow, inverse_order, order_by_cluster, partition, shuffle_clusters
from softindex.progress import reporting
from softindex.records import Doubles, Draws, Estimate, Floats, Ids, Integers, Items, Json, Stored, TopK
from softindex.restrictions import Restriction, restrict
from softindex.store import load as load_stored
from softindex.store import save as save_stored
from softindex.vectors import read, rearrange

if TYPE_CHECKING:
    from softindex.evaluate import Audit

__all__ = ["Index", "build", "from_stored", "load", "to_stored"]

_THROWN = (MemoryError, RuntimeError, IndexError)


class Index:
    """Items partitioned into clusters, ready to be drawn from.  Made by `build` or `load`; never changes."""

    __slots__ = ("_contents", "_dim", "_engine", "_laws")

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._dim = int(contents.vectors.shape[1])
        self._engine = make_engine(contents)
        self._laws: dict[str, NativeLaw] = {}

    def __len__(self) -> int:
        return len(self._contents.vectors)

    def __repr__(self) -> str:
        kind = self._contents.moments.dispersion.kind
        return (
            f"<softindex.Index: {len(self)} items, {self.dim} dimensions, {self.clusters} clusters, {kind} dispersion>"
        )

    @property
    def dim(self) -> int:
        """Dimensions of an item."""
        return self._dim

    @property
    def clusters(self) -> int:
        """Number of clusters, empty ones included."""
        return len(self._contents.moments.means)

    @property
    def sizes(self) -> Integers:
        """(k,) items in each cluster."""
        return np.diff(self._contents.offsets)

    @property
    def ids(self) -> Ids:
        """(n,) every id, cluster after cluster: the first `sizes[0]` are those of cluster 0."""
        return self._contents.ids.at(np.arange(len(self)))

    @property
    def items(self) -> Items:
        """The stored vectors, cluster offsets, log biases and cluster means, in the order of `ids`; do not write to
        these arrays.
        """
        contents = self._contents
        return Items(contents.vectors, contents.offsets, contents.log_bias, contents.moments.means)

    @property
    def parameters(self) -> Json:
        """How the index was built, and what it holds."""
        return describe(self._contents)

    def __reduce__(self) -> str:
        raise TypeError("an Index is not pickled; save it with index.save(path) and open it with softindex.load(path).")

    def sample(
        self,
        queries: Any,
        n: int = 1,
        *,
        temperature: float,
        method: str = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        replace: bool = True,
        exclude: Any = None,
        top_p: float | None = None,
        k: int | None = None,
        seed: int | None = None,
        threads: int | None = None,
    ) -> Draws:
        """Draw n items per query from a law close to the softmax.

        - `queries`: (b, d) or (d,).
        - `method`: p(i) is proportional to `exp(q.x_i / temperature + log_bias_i)` for "exact"; "certified" draws from
          that very law too, but scans only the clusters that bounds on their mass leave open.  "2ls", "s-2ls" and
          "sd-2ls" estimate the mass of each cluster and draw inside it exactly; "hierarchical", "s-hierarchical" and
          "sd-hierarchical" find the cluster by a walk down the tree of an index built with one; "top-k" is the softmax
          of the `k` best items (1000 when None) and never draws another.
        - `probes`: clusters scanned before drawing.  None: as many as it takes until the estimated total variation to
          the softmax, which `error` tells, is within `tolerance` (0.03), or the larger of a twentieth of the items and
          2^20 numbers was read; m: the m most massive ones; 0: none, the law as published, and no error is told.
          For "top-k", the clusters in which the k best are looked for; None proves them.
        - `replace` False: n different items, each drawn from the law of those not drawn before it, and `log_prob` is
          that of its step.
        - `exclude`: ids that are not to be drawn, (m,) for all queries alike or one sequence per query (None for
          nothing); the law of the others is renormalised.
        - `top_p`: only the smallest set of most probable items that reaches this probability, renormalised.
        - `seed`: the same seed and query give the same draws, however queries are batched, ordered or spread over
          threads; copies of a query in one call get draws of their own.  None: a fresh one, told in the result.
        """
        batch, single = check_queries(queries, self._dim)
        count, heat, key = check_count(n, "n"), check_temperature(temperature), check_seed(seed)
        law, clusters, allowed = self._law(method, probes, tolerance)
        part = self._part(
            len(batch), count, method=method, probes=clusters, replace=replace, exclude=exclude, top_p=top_p, k=k
        )
        workers = check_threads(threads)
        if method == CERTIFIED and part is None:
            return self._sample_certified(batch, single, count, law, heat, key, workers)
        positions, log_prob = _empty(len(batch), count, np.int64), _empty(len(batch), count, np.float64)
        scored, error = np.empty(len(batch), np.int64), np.empty(len(batch))
        results = positions, log_prob, scored, error
        try:
            if part is None:
                self._engine.sample(batch, law, heat, clusters, allowed, key, workers, *results)
            else:
                law, left = self._whole_law(method, law), np.empty(len(batch), np.int64)
                self._engine.sample_restricted(
                    batch, law, heat, clusters, allowed, part.native, key, workers, *results, left
                )
                part.check_nucleus(left, count)
            ids = self._contents.ids.at(positions)
        except _THROWN as thrown:
            raise _explain(thrown, len(batch), count) from thrown
        if single:
            return Draws(ids[0], log_prob[0], error[0], scored[0], method, key)
        return Draws(ids, log_prob, error, scored, method, key)

    def _sample_certified(
        self, batch: Floats, single: bool, count: int, law: NativeLaw, heat: float, key: int, workers: int
    ) -> Draws:
        b = len(batch)
        positions, scored = _empty(b, count, np.int64), np.empty(b, np.int64)
        log_prob, low, high = (_empty(b, count, np.float64) for _ in range(3))
        try:
            self._engine.sample_certified(batch, law, heat, key, workers, positions, log_prob, low, high, scored)
            ids = self._contents.ids.at(positions)
        except _THROWN as thrown:
            raise _explain(thrown, b, count) from thrown
        if single:
            return Draws(ids[0], log_prob[0], 0.0, scored[0], CERTIFIED, key, None, low[0], high[0])
        return Draws(ids, log_prob, np.zeros(b), scored, CERTIFIED, key, None, low, high)

    def log_prob(
        self,
        queries: Any,
        ids: Any,
        *,
        temperature: float,
        method: str = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        exclude: Any = None,
        top_p: float | None = None,
        k: int | None = None,
        threads: int | None = None,
    ) -> Doubles:
        """Natural log of the probability that one draw returns the id, under the law that `sample` draws from.

        `queries` (b, d) and `ids` (b, m), or (m,) for every query alike; returns (b, m).  One query (d,): `ids` (m,),
        returns (m,).  The other arguments as for `sample`, and equal for equal laws; -inf for an id that cannot be
        drawn.  For the steps of a slate, exclude the items drawn before.
        """
        batch, single = check_queries(queries, self._dim)
        heat = check_temperature(temperature)
        law, clusters, allowed = self._law(method, probes, tolerance)
        part = self._part(
            len(batch), 1, method=method, probes=clusters, replace=True, exclude=exclude, top_p=top_p, k=k
        )
        positions = self._contents.ids.find(ids)
        wanted = _spread(positions, len(batch), single)
        b, m = wanted.shape
        result, workers = _empty(b, m, np.float64), check_threads(threads)
        law = self._whole_law(method, law)
        try:
            if part is None:
                self._engine.log_prob(batch, law, heat, clusters, allowed, wanted, workers, result)
            else:
                # The k best know their own sum; probes are for those who need the masses of the rest.
                clusters = 0 if method == TOP_K else clusters
                self._engine.log_prob_restricted(
                    batch, law, heat, clusters, allowed, part.native, wanted, workers, result
                )
        except _THROWN as thrown:
            raise _explain(thrown, b, m) from thrown
        return result.reshape(positions.shape) if single else result

    def log_partition(
        self,
        queries: Any,
        *,
        temperature: float,
        method: str = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        confidence: float | None = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> Estimate:
        """Log of Z, the sum of `exp(q.x_i / temperature + log_bias_i)`, as the method estimates it.

        `queries` (b, d) or (d,); value (b,).  "exact" comes with bounds that hold whatever the rounding of float32;
        "certified" scans clusters until its bounds are no farther apart than the `tolerance`, in nats.  `confidence`,
        such as 0.95: the bounds hold with this probability, over the seed, and cost less: clusters are then drawn.  The
        methods that walk a tree estimate no log Z.
        """
        batch, single = check_queries(queries, self._dim)
        heat = check_temperature(temperature)
        law, clusters, allowed = self._law(method, probes, tolerance)
        check_estimates(method)
        sure, key, workers = check_confidence(confidence, method), check_seed(seed), check_threads(threads)
        value, low, high = (np.empty(len(batch)) for _ in range(3))
        bracketed = method == CERTIFIED or confidence is not None
        try:
            if bracketed:
                law, scored = self._law(CERTIFIED, None, None)[0], np.empty(len(batch), np.int64)
                results = value, low, high, scored
                self._engine.bracket_log_partition(batch, law, heat, allowed, sure, key, workers, *results)
            else:
                self._engine.log_partition(batch, law, heat, clusters, allowed, workers, value)
        except _THROWN as thrown:
            raise _explain(thrown, len(batch), 1) from thrown
        if not LAWS[method].exhaustive and not bracketed:
            return Estimate(value[0] if single else value)
        if not bracketed:
            slack = log_partition_slack(batch, value, heat, self._contents.moments, self._contents.log_bias)
            low, high = value - slack, value + slack
        return Estimate(value[0], low[0], high[0]) if single else Estimate(value, low, high)

    def top_k(
        self,
        queries: Any,
        k: int,
        *,
        temperature: float = 1.0,
        probes: int | None = None,
        threads: int | None = None,
    ) -> TopK:
        """Return the k items of highest score, best first.  `queries` (b, d) or (d,); ids and scores (b, k).

        The score is `q.x + temperature * log_bias`: the order of the probabilities at that temperature.  Without log
        biases the temperature does not matter.  `probes` None: proven to be the k best, by bounds on the clusters
        that were not scanned; m: the best of the m most promising clusters, or of more where these hold fewer than k
        items.  Equal scores come in the order in which the items are stored.
        """
        batch, single = check_queries(queries, self._dim)
        count, heat = check_count(k, "k"), check_temperature(temperature)
        if count > len(self):
            raise InputError(f"k is {count} but the index holds {len(self)} items; ask for at most that many.")
        clusters = -1 if probes is None else check_count(probes, "probes")
        workers = check_threads(threads)
        positions, scores = _empty(len(batch), count, np.int64), _empty(len(batch), count, np.float32)
        scored = np.empty(len(batch), np.int64)
        try:
            self._engine.top_k(batch, heat, clusters, workers, positions, scores, scored)
            ids = self._contents.ids.at(positions)
        except _THROWN as thrown:
            raise _explain(thrown, len(batch), count) from thrown
        proven, gap = np.full((len(batch), count), clusters < 0), np.full(len(batch), 0.0 if clusters < 0 else np.nan)
        if single:
            return TopK(ids[0], scores[0], proven[0], gap[0], scored[0])
        return TopK(ids, scores, proven, gap, scored)

    def cluster_log_masses(
        self,
        queries: Any,
        *,
        temperature: float,
        method: str,
        probes: int | None = None,
        tolerance: float | None = None,
        threads: int | None = None,
    ) -> tuple[Doubles, Doubles, Integers]:
        """Log of the mass that a method gives each cluster, its stated error, and the number of items scored.

        Inside a cluster every method but "top-k" draws from the exact softmax, so these masses are all that differs
        between methods.

        Args:
            queries: Query vectors, (b, d).
            temperature: Divides the scores.
            method: A method that chooses a cluster first, as for `sample`.
            probes: As for `sample`.
            tolerance: As for `sample`.
            threads: Number of threads; all CPUs when None.

        Returns:
            Log masses (b, k), not normalised; stated errors (b,), NaN where the method states none; items scored (b,).
        """
        batch, _ = check_queries(queries, self._dim)
        law, clusters, allowed = self._law(method, probes, tolerance)
        b, value, workers = len(batch), check_temperature(temperature), check_threads(threads)
        masses, scored, error = _empty(b, self.clusters, np.float64), np.empty(b, np.int64), np.empty(b)
        self._engine.masses(batch, law, value, clusters, allowed, workers, masses, scored, error)
        return masses, error, scored

    def audit(
        self,
        queries: Any = None,
        *,
        count: int | None = None,
        temperatures: Any = (0.05, 0.1, 0.2),
        methods: Any = None,
        tolerance: float | None = None,
        seed: int = 0,
        threads: int | None = None,
        progress: bool = False,
    ) -> Audit:
        """Measure how far every method is from the softmax on these items, and what it costs.

        - `queries` `(b, d)`; None: items of the index, drawn by the seed.
        - `count`: how many of them; when None, 300 items or all the queries that you pass.
        - `temperatures`: one, or several.
        - `methods`: names, each with a colon and a number of probes if you like, as in "sd-2ls:16" ("sd-2ls:0" is the
          published law); None: all that this index serves.
        - `tolerance`: the total variation that the recommendation allows, 0.03 when None.

        The softmax itself is computed in float64, in blocks of items and on all threads; latencies are those of single
        queries on one thread.  The result has rows, a recommendation, and `to_html(path)` and `to_json(path)`.
        """
        # The only step upwards: evaluating is a layer above the index, and loaded only when asked for.
        from softindex.evaluate import run_audit

        return run_audit(
            self,
            queries,
            count=count,
            temperatures=temperatures,
            methods=methods,
            tolerance=tolerance,
            seed=seed,
            threads=threads,
            progress=progress,
        )

    def save(self, path: str | os.PathLike[str], *, progress: bool = False) -> None:
        """Write the index to a directory, atomically: killed at any moment, the old or the new one is there."""
        with reporting(progress) as report:
            told = None if report is None else partial(report, "saving")
            save_stored(path, to_stored(self), progress=told)

    def _whole_law(self, method: str, law: NativeLaw) -> NativeLaw:
        """The law with the mass of every cluster: certified draws know only some of them, and are draws of "exact"."""
        return self._law("exact", None, None)[0] if method == CERTIFIED else law

    def _part(
        self, b: int, n: int, *, method: str, probes: int, replace: Any, exclude: Any, top_p: Any, k: Any
    ) -> Restriction | None:
        """What b queries may draw n items from; None, and no time lost, where that is the whole law."""
        if replace is True and exclude is None and top_p is None and k is None and method != TOP_K:
            return None
        ids, items = self._contents.ids, len(self)
        part = restrict(ids, items, b, method=method, probes=probes, replace=replace, exclude=exclude, top_p=top_p, k=k)
        part.check_possible(n)
        # Certified draws of a part are made otherwise than those of the whole: one way for all queries of a call, even
        # for those that exclude nothing.
        return None if part.empty and (method != CERTIFIED or exclude is None) else part

    def _law(self, method: str, probes: int | None, tolerance: float | None) -> tuple[NativeLaw, int, float]:
        known = self._laws.get(method) if isinstance(method, str) else None
        if known is None:
            moments, tree = self._contents.moments, self._contents.tree
            law = find_law(method, moments.dispersion.kind, tree is not None)
            offset = law_offset(law, moments) if tree is None or law.kind != "tree" else tree_offset(law, tree)
            known = self._laws[method] = NativeLaw(offset, law.dispersion, law.kind)
        return known, *check_probes(probes, tolerance, method, self.clusters)


def _empty(b: int, m: int, dtype: type[Any]) -> NDArray[Any]:
    """An array (b, m) for results; InputError where it would not fit into memory."""
    try:
        return np.empty((b, m), dtype)
    except (MemoryError, ValueError) as error:
        raise InputError(f"{m} results for each of {b} queries do not fit into memory; ask for fewer.") from error


def _explain(error: Exception, b: int, m: int) -> SoftindexError:
    """What the engine threw, in words."""
    if isinstance(error, MemoryError):
        return InputError(f"{m} results for each of {b} queries do not fit into memory; ask for fewer.")
    # Larger arrays of a mapped index are not checked when it is loaded.
    advice = "run softindex verify on it, restore a copy or build it again"
    return CorruptIndexError(f"the index is damaged ({error}); {advice}.")


def _spread(positions: Integers, b: int, single: bool) -> Integers:
    """Positions (b, m), C-contiguous, from what the caller gave for b queries."""
    if single and positions.ndim <= 1:
        return np.ascontiguousarray(positions.reshape(1, -1))
    if positions.ndim == 1:
        return np.ascontiguousarray(np.broadcast_to(positions, (b, len(positions))))
    if positions.ndim == 2 and len(positions) == b:
        return np.ascontiguousarray(positions)
    raise InputError(
        f"ids have shape {positions.shape} for {b} queries; expected (m,) for all alike or ({b}, m), a row a query."
    )


def build(
    vectors: Any,
    *,
    ids: Any = None,
    log_bias: Any = None,
    clusters: int | None = None,
    dispersion: str | int = "auto",
    tree: bool = False,
    codes: bool = False,
    seed: int = 0,
    threads: int | None = None,
    progress: bool = False,
) -> Index:
    """Build an index over vectors (n, d): float32 or float16 array, memmap, torch tensor, or path to a file.

    The vectors are copied, cluster by cluster, as float32.

    - `ids`: integers or strings, one per row; row numbers when None.
    - `log_bias` (n,): added to each item's logit, as a log prior; an item of bias log 2 counts as two items.
    - `clusters`: `round(sqrt(n))` when None.
    - `dispersion`: what is kept of the spread inside clusters for sd-2ls: "none", "full" (covariances), a rank r, or
      "auto".
    - `tree`: cut the items in two by 2-means, and the parts again, until no cluster holds more than 1024 items (or
      there are as many as `clusters` says), and keep the tree for the hierarchical methods; all others serve such an
      index too.
    - `codes`: also keep every item in eight bits a number, a quarter of the memory of the vectors, with a bound on what
      is lost.
    - `seed`: on one machine the same input, seed and settings give the same index.

    Files: `.npy .npz .safetensors .parquet .fvecs .bvecs .hdf5 .txt`; of several arrays the only two-dimensional one is
    taken, or the one named vectors, embeddings, weight or train, or the one you name: `"file.npz::name"`.  Ids are
    taken from an array or column "ids" (Parquet also "id"), or are the words of a text file, unless you pass your own.
    """
    workers, key = check_threads(threads), check_seed(seed)
    source = read(vectors, ids=ids)
    n, d = source.vectors.shape
    asked_clusters = None if clusters is None else check_count(clusters, "clusters")
    with_tree, with_codes = check_flag(tree, "tree"), check_flag(codes, "codes")
    form = choose_dispersion(dispersion, d)
    bias = check_per_item(log_bias, n, name="log_bias")
    check_vectors(source.vectors)
    with reporting(progress) as report:
        if with_tree:
            parts, branches = grow(source.vectors, asked_clusters, seed=key, threads=workers, report=report)
        else:
            clusters, branches = asked_clusters or max(1, round(n**0.5)), None
            parts = partition(source.vectors, clusters, seed=key, threads=workers, report=report)
        order, offsets = order_by_cluster(parts)
        shuffle_clusters(order, offsets, seed=key)
        positions = inverse_order(order)
        placed = rearrange(source.vectors, positions, report=report)
        placed_bias = None if bias is None else bias[order]
        moments = measure(placed, offsets, log_bias=placed_bias, dispersion=form, threads=workers, report=report)
        far = list_outliers(placed, offsets, moments.means, threads=workers)
        coded = encode(placed, offsets, moments.means, threads=workers, report=report) if with_codes else None
        grown = None
        if branches is not None:
            grown = measure_tree(
                placed, branches, log_bias=placed_bias, dispersion=form, threads=workers, report=report
            )
    asked = dispersion if isinstance(dispersion, str) else form
    parameters = {"softindex": version("softindex"), "seed": key, "dispersion_asked": asked}
    names = id_map(source.ids, order, positions)
    return Index(Contents(placed, offsets, names, placed_bias, moments, parameters, coded, far, grown))


def to_stored(index: Index) -> Stored:
    """The parameters and arrays of an index; `from_stored` opens them again."""
    return contents_to_stored(index._contents)


def from_stored(stored: Stored) -> Index:
    """The index that `to_stored` described; CorruptIndexError where arrays are missing or do not fit together."""
    contents = contents_from_stored(stored)
    try:
        return Index(contents)
    except (ValueError, TypeError) as error:
        raise CorruptIndexError(
            f"the arrays of the index do not fit together ({error}); restore a copy or build it again."
        ) from error


def load(path: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> Index:
    """Open a saved index.

    - `mmap`: in milliseconds whatever its size, pages are read when first used.
    - `verify`: check every byte against its checksum first (as `softindex verify` does); `mmap=False` always does.
    """
    contents = contents_from_stored(load_stored(path, mmap=mmap, verify=verify, kind=KIND))
    try:
        return Index(contents)
    except (ValueError, TypeError) as error:
        raise CorruptIndexError(
            f"the index at {os.fspath(path)} does not fit together ({error}); restore a copy or build it again."
        ) from error
