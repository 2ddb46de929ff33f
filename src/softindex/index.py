"""The index: checks the arguments of a call, passes them to the engine, and computes nothing itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from softindex import calls, laws
from softindex.arguments import (
    check_confidence,
    check_count,
    check_queries,
    check_seed,
    check_threads,
)
from softindex.contents import Contents
from softindex.contents import from_stored as read_contents
from softindex.contents import to_stored as write_contents
from softindex.errors import InputError
from softindex.fields import damaged
from softindex.held import Held
from softindex.inspected import Inspected
from softindex.kernels import Engine, Law, Request
from softindex.laws import Method
from softindex.progress import reporting
from softindex.recall import plan_search, states_recall
from softindex.records import Doubles, Draws, Estimate, Floats, Integers, Stored, TopK
from softindex.restrictions import Missing, Restriction, Unknown, find_some, restrict_draws, restrict_items
from softindex.store import save as save_stored
from softindex.temperatures import Temperature, check_each_temperature

__all__ = ["Index", "from_stored", "to_stored"]


class Index(Held, Inspected):
    """Items partitioned into clusters, ready to be drawn from.  Made by `build` or `load`; never changes."""

    __slots__ = ("_biased", "_laws", "_stated")

    def __init__(self, contents: Contents, engine: Engine | None = None) -> None:
        super().__init__(contents, engine)
        self._biased: bool = contents.parameters["bias"]
        self._stated = states_recall(contents.parameters)
        self._laws: dict[tuple[str, int | None], tuple[Law, int, float]] = {}

    def sample(
        self,
        queries: ArrayLike,
        n: int = 1,
        *,
        temperature: Temperature,
        method: Method = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        replace: bool = True,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        top_p: float | None = None,
        k: int | None = None,
        seed: int | None = None,
        threads: int | None = None,
    ) -> Draws:
        """Draw n items per query from the softmax, or from a distribution close to it.

        Args:
            queries: Query vectors, (b, d) or (d,).
            n: Number of draws per query.
            temperature: p(i) is proportional to `exp((q.x_i + bias_i) / temperature + log_bias_i)`; a number, or (b,).
            method: "exact" scores every item.  "certified" draws from the same softmax, but scans only the clusters
                that proven bounds leave open.  "2ls", "s-2ls" and "sd-2ls" estimate the mass of each cluster and draw
                inside it exactly.  The "hierarchical" ones find the cluster by a walk down the tree of an index built
                with one.  "top-k" is the softmax of the k best items.
            probes: Clusters scanned before drawing.  None: until the estimated error is at most `tolerance`, or the
                larger of a twentieth of the items and 2^20 numbers was read.  m: the m most massive.  0: the method as
                published, with no stated error.  For "top-k": clusters to search; None proves the k best.
            tolerance: Total variation at which probing stops, 0.03 when None.
            replace: False: n different items.  Each is drawn from those left; `log_prob` is that of its step.
            exclude: Ids not to draw, (m,) for all queries or one sequence (or None) per query; or booleans, (n,) or
                (b, n), in the order of `ids`.
            allow: The only items to draw, in the same forms.  A short list is drawn from exactly by every method.
            unknown: Ids that are not there: "ignore", as snapshots and subsets do when None, or "error".
            top_p: Draw from the smallest set of most probable items that reaches this probability.
            k: Items of "top-k", 1000 when None.
            seed: The same seed and query give the same draws in any batch.  None: a fresh one, reported in the result.
            threads: Number of threads; all CPUs when None.

        Returns:
            The draws, different ones for copies of a query.  `log_partition` is that of all items not excluded, even
            for "top-k" and `top_p`; with bounds for "exact" and "certified", None for the tree methods.
        """
        batch, single = self._queries(queries)
        count, t, key = check_count(n, "n"), check_each_temperature(temperature, len(batch)), check_seed(seed)
        law, clusters, error = self._law(method, probes, tolerance)
        plain = replace is True and exclude is allow is unknown is None and top_p is k is None and method != laws.TOP_K
        part = None if plain else self._part(batch, count, method, replace, (exclude, allow, unknown), top_p=top_p, k=k)
        law, native = (law, None) if part is None else (laws.scanned_law(method, law), part.native)
        request = Request(batch, law, t, clusters, error, native, key, check_threads(threads))
        draws = calls.draw(
            self._engine, self._contents.ids, request, (len(batch), count, single), method, part, seed=key
        )
        if part is None and (calibration := self._contents.calibration) is not None:
            calibration.apply(draws, (method, clusters, error), t)
        draws.snapshot = self._contents.snapshot
        return draws

    def log_prob(
        self,
        queries: ArrayLike,
        ids: Any,
        *,
        temperature: Temperature,
        method: Method = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        replace: bool = True,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        top_p: float | None = None,
        k: int | None = None,
        missing: Missing = "error",
        threads: int | None = None,
    ) -> Doubles:
        """Natural log of the probability that one draw of `sample` returns the id; or of the steps of slates.

        For what `sample` drew these are the numbers that it reported, to the last bit ("certified" without
        restrictions excepted, whose report lies between bounds; here it is that of "exact").

        Args:
            queries: Query vectors, (b, d) or (d,).
            ids: (b, m), or (m,) for all queries.
            temperature: As for `sample`, like all further arguments.
            replace: False: each row of `ids` is an ordered slate, and step j is drawn from what the steps before it
                left.  The sum of a row is the log-probability of the slate.
            missing: "-inf": the log-probability of an id that the index does not hold; "error": refuse it.

        Returns:
            (b, m) float64, or the shape of `ids` for one query; -inf for an id that cannot be drawn.  In a slate such
            a step, a repeated id for example, takes nothing away from the steps after it.
        """
        batch, single = self._queries(queries)
        t = check_each_temperature(temperature, len(batch))
        law, clusters, error = self._law(method, probes, tolerance)
        part = self._part(batch, 1, method, replace, (exclude, allow, unknown), top_p=top_p, k=k)
        positions, absent = find_some(self._contents.ids, ids, missing)
        if absent is not None and not replace:
            # A step that cannot be made takes no item away.
            positions[absent] = calls.NOWHERE
        rows = calls.spread_positions(positions, len(batch), single)
        native = None if part is None else part.native
        law, workers = laws.scanned_law(method, law), check_threads(threads)
        request = Request(batch, law, t, clusters, error, native, 0, workers)
        result = calls.log_probabilities(self._engine, request, rows)
        if absent is not None:
            result[calls.spread_positions(absent.astype(np.int64), len(batch), single) == 1] = -np.inf
        return result.reshape(positions.shape) if single else result

    def log_partition(
        self,
        queries: ArrayLike,
        *,
        temperature: Temperature,
        method: Method = "sd-2ls",
        probes: int | None = None,
        tolerance: float | None = None,
        width: float | None = None,
        confidence: float | None = None,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> Estimate:
        """Log of Z, the sum of `exp((q.x_i + bias_i) / temperature + log_bias_i)` over the items left.

        "exact" comes with bounds that allow for the rounding of float32.  "certified" scans clusters until its bounds
        are `width` apart.  With `exclude` or `allow` both score every item left.  The tree methods estimate no log Z.
        Estimates are poor where the excluded items carry most of the mass: use "exact" or "certified" there.

        Args:
            queries: Query vectors, (b, d) or (d,).
            temperature: As for `sample`, like `method`, `probes`, `tolerance`, `exclude`, `allow` and `unknown`.
            width: Nats between the bounds at which "certified" stops, 0.03 when None.  Below 1e-3 everything may be
                scanned without reaching it: bounds allow for float32 weights, 2e-4, and for rounding over temperature.
            confidence: Bounds that hold with this probability, such as 0.95.  If `calibrate` covers these options, for
                queries like those that it was given: an interval about as wide as the estimate is wrong.  Otherwise,
                and for "certified", for every query, over the seed: valid for any data, but often many nats wide.
            seed: Of the draws of clusters.

        Returns:
            value, low and high, (b,) each, and what the bounds are worth (`guarantee`); no bounds for methods that
            estimate.
        """
        batch, single = self._queries(queries)
        shape, plan = (len(batch), 1, single), self._law(method, probes, tolerance)
        t = check_each_temperature(temperature, len(batch))
        part = self._left(len(batch), exclude, allow, unknown)
        native, key, workers = None if part is None else part.native, check_seed(seed), check_threads(threads)

        def ask(law: Law, clusters: int, error: float) -> Request:
            return Request(batch, law, t, clusters, error, native, key, workers)

        if confidence is not None and part is None and width is None and self.calibration is not None:
            asked = method, *plan[1:]
            factor = self.calibration.log_partition_factor(asked, t, check_confidence(confidence))
            if factor is not None:
                return calls.calibrated_log_partition(self._engine, ask(*plan), shape, factor)
        bounds = laws.find_bounds(method, probes=probes, tolerance=tolerance, width=width, confidence=confidence)
        if bounds is None:
            return calls.estimate_log_partition(self._engine, ask(*plan), shape, bounded=method in laws.PROVEN_METHODS)
        if part is not None:
            return calls.estimate_log_partition(self._engine, ask(laws.LAWS[laws.EXACT], 0, 0.0), shape, bounded=True)
        request = ask(self._law(laws.CERTIFIED, None, None)[0], 0, 0.0)
        request.bound(*bounds)
        default = "s-2ls" if self.parameters["dispersion"] == "none" else "sd-2ls"
        guess = None if confidence is None else ask(*self._law(default, None, None))
        return calls.bound_log_partition(self._engine, request, guess, shape)

    def top_k(
        self,
        queries: ArrayLike,
        k: int,
        *,
        temperature: Temperature = 1.0,
        probes: int | None = None,
        recall: float | None = None,
        exclude: Any = None,
        allow: Any = None,
        unknown: Unknown | None = None,
        threads: int | None = None,
    ) -> TopK:
        """Return the k items of highest score, best first; equal scores in the order in which items are stored.

        Args:
            queries: Query vectors, (b, d) or (d,).
            k: Number of items.
            temperature: The score is `q.x + bias + temperature * log_bias`: the order of the probabilities at that
                temperature.  Without log biases it does not matter.
            probes: None: search until bounds on the rest prove the k best.  m: search at most the m most promising
                clusters (more where these hold fewer than k items); `proven` and `gap` say what is proven.
            recall: Search as many clusters as this share of the k best is expected to need, such as 0.99.  Measured at
                build for items as queries; with `log_bias` or without a sketch the search is proven instead.
            exclude: As for `sample`, like `allow` and `unknown`.
            threads: Number of threads; all CPUs when None.

        Returns:
            ids, scores and proven (b, k), gap, items_scored and expected recall (b,).
        """
        batch, single = self._queries(queries)
        b, count, t = len(batch), check_count(k, "k"), check_each_temperature(temperature, len(batch))
        if count > len(self):
            raise InputError(f"k is {count} but the index holds {len(self)} items; ask for at most that many.")
        law, clusters, missed = plan_search(probes, recall, self.parameters)
        part = self._left(b, exclude, allow, unknown)
        if part is not None:
            part.check_best(count)
        native, workers = None if part is None else part.native, check_threads(threads)
        request = Request(batch, law, t, clusters, missed, native, 0, workers)
        return calls.find_best(self._engine, self._contents.ids, request, (b, count, single), stated=self._stated)

    def cluster_log_masses(
        self,
        queries: ArrayLike,
        *,
        temperature: Temperature,
        method: Method,
        probes: int | None = None,
        tolerance: float | None = None,
        exclude: Any = None,
        threads: int | None = None,
    ) -> tuple[Doubles, Doubles, Integers]:
        """Log of the mass that a method gives what can be drawn of each cluster, its stated error, and items scored.

        Inside a cluster every method but "top-k" draws from the exact softmax, so these masses are all that differs
        between methods.

        Args:
            queries: Query vectors, (b, d).
            temperature: As for `sample`, like the other arguments.

        Returns:
            Log masses (b, k), not normalised; stated errors (b,), NaN where the method states none; items scored (b,).
        """
        batch, _ = self._queries(queries)
        law, clusters, error = self._law(method, probes, tolerance)
        t, workers = check_each_temperature(temperature, len(batch)), check_threads(threads)
        part = self._left(len(batch), exclude, None, None)
        request = Request(batch, law, t, clusters, error, None if part is None else part.native, 0, workers)
        return calls.measure_masses(self._engine, request, len(batch), self.clusters)

    def save(
        self, path: str | os.PathLike[str], *, subsets: Mapping[str, Any] | None = None, progress: bool = False
    ) -> None:
        """Write the index to a directory, atomically: killed at any moment, the old or the new one is there.

        A snapshot or a subset is written as an index of its own, with its clusters measured again, and without its
        calibration.

        Args:
            path: The directory.
            subsets: Subsets to keep with the index by name, beside those it has: what `subset` returned or takes.  A
                bit per item is stored; `softindex.load(path).subset(name)` makes the subset again.
            progress: Show a progress bar on a terminal.
        """
        contents = self._contents if subsets is None else self._with_subsets(subsets)
        with reporting(progress) as report:
            # What is damaged must not be given new checksums.
            contents.check()
            save_report = None if report is None else partial(report, "saving")
            save_stored(path, write_contents(contents), progress=save_report)

    def _queries(self, queries: Any) -> tuple[Floats, bool]:
        batch, single = check_queries(queries, self._dim)
        # The bias of an item is its last coordinate: every query has a one there.
        return (np.hstack([batch, np.ones((len(batch), 1), np.float32)]) if self._biased else batch), single

    def _part(
        self, batch: Floats, n: int, method: str, replace: Any, chosen: tuple[Any, Any, Any], **options: Any
    ) -> Restriction | None:
        """What n draws per query are made from; None where it is the entire law.  chosen: exclude, allow, unknown."""
        exclude, allow, unknown = chosen
        plain = replace is True and exclude is None and allow is None and unknown is None and method != laws.TOP_K
        if plain and options["top_p"] is None and options["k"] is None:
            return None
        options |= {"exclude": exclude, "allow": allow, "unknown": self._contents.treat_unknown(unknown)}
        return restrict_draws(self._contents, (len(batch), n), method, replace=replace, **options)

    def _left(self, b: int, exclude: Any, allow: Any, unknown: Any) -> Restriction | None:
        """What is left for b queries; None where that is everything."""
        if exclude is None and allow is None and unknown is None:
            return None
        return restrict_items(self._contents, b, exclude, allow, self._contents.treat_unknown(unknown))

    def _law(self, method: Any, probes: Any, tolerance: Any) -> tuple[Law, int, float]:
        """The law of a method, the clusters to probe, and the tolerance, for the engine."""
        # Every single query passes here: arguments that were valid once are valid again.  (True is 1 to a dict, but is
        # not a count.)
        usual = tolerance is None and type(method) is str and (probes is None or type(probes) is int)
        if usual and (known := self._laws.get((method, probes))) is not None:
            return known
        parameters = self._contents.parameters
        law = laws.find_law(method, parameters["dispersion"], parameters["tree"])
        chosen = law, *laws.check_probes(probes, tolerance, method, self.clusters)
        if usual:
            self._laws[method, probes] = chosen
        return chosen


def to_stored(index: Index) -> Stored:
    """What `Index.save` writes."""
    return write_contents(index._contents)


def from_stored(stored: Stored) -> Index:
    """The index that was saved; CorruptIndexError where its parts do not fit together."""
    contents = read_contents(stored)
    try:
        return Index(contents)
    except (ValueError, TypeError) as error:
        raise damaged(str(error)) from error
