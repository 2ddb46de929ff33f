"""Measure every method of an index against the exact softmax, on the caller's own queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from softindex.arguments import check_count, check_queries, check_seed, check_temperatures, check_threads
from softindex.errors import InputError
from softindex.evaluate.distances import Distances, between, mean_interval, median_interval
from softindex.evaluate.figures import measure_figures
from softindex.evaluate.left_out import LeftOut, leave_out
from softindex.evaluate.machine import machine
from softindex.evaluate.memory import draw_bytes
from softindex.evaluate.methods import AuditMethod, choose_methods, name_dispersion
from softindex.evaluate.recommendation import recommend
from softindex.evaluate.results import Audit, Measured, Row
from softindex.evaluate.slates import check_slate, time_decisions
from softindex.evaluate.timing import take_turns
from softindex.evaluate.truth import Truth, find_truth, log_sum_of, longest
from softindex.index import Index
from softindex.kernels import dot_error
from softindex.laws import CERTIFIED, LAWS, TOLERANCE, TOP_K, check_tolerance
from softindex.progress import reporting
from softindex.records import Doubles, Draws, Floats, Integers, Report
from softindex.restrictions import DEFAULT_K

__all__ = ["QUERIES", "TEMPERATURES", "run_audit"]

TEMPERATURES = (0.05, 0.1, 0.2)
QUERIES = 300
TIMED = 100
"""Queries that are timed; fewer where one exact draw takes long."""
TIMED_SECONDS = 10.0
"""Time that the exact draws of one temperature may take."""
FEWEST_TIMED = 20
BRACKETED = 50
"""Queries for which "certified" bounds log Z, which takes many scans."""
SLACK = 0.01
"""A stated error counts as exceeded where the total variation is above twice as much, plus this."""
EXACT = AuditMethod("exact")


def run_audit(
    index: Index,
    queries: Any,
    *,
    count: int | None,
    temperatures: Any,
    methods: Any,
    tolerance: float | None,
    slate: int | None,
    seed: int,
    threads: int | None,
    progress: bool,
) -> Audit:
    """Measure methods against the exact softmax; see `Index.audit`, which has the defaults."""
    key, workers = check_seed(seed), check_threads(threads)
    settings = check_temperatures(temperatures)
    chosen, length = choose_methods(index, methods), check_slate(slate, len(index))
    allowed = TOLERANCE if tolerance is None else check_tolerance(tolerance)
    if allowed >= 1:
        raise InputError(f"tolerance is {allowed:g}, but no total variation is above 1; pass one below, such as 0.03.")
    batch, source, own = _choose_queries(index, queries, count, key)
    left = None if own is None else leave_out(index, batch, own, settings)
    with reporting(progress) as report:
        truth = find_truth(index.items, batch, settings, own=own, threads=workers, report=report)
        rows: list[Row] = []
        for place, temperature in enumerate(settings):
            trial = _Trial(index, batch, truth, place, temperature, left=left, threads=workers, report=report)
            rows += trial.rows(chosen, length)
        complete = truth if left is None else left.complete(truth)
        figures = measure_figures(index, batch, complete, settings, threads=workers)
    parameters = {
        **index.parameters,
        "queries": len(batch),
        "queries_are": source,
        "temperatures": settings,
        "tolerance": allowed,
        "audit_seed": key,
        "logits_rounded_by": _rounding(index, batch, settings),
        **_storage(index, batch, settings),
        "latencies": "one thread, called from Python",
        "machine": machine(),
    }
    recommended, sentence = recommend(rows, allowed)
    return Audit(tuple(rows), recommended, sentence, parameters, index.sizes, figures)


def _rounding(index: Index, queries: Floats, temperatures: Sequence[float]) -> list[float]:
    """The largest error of a logit in float32, at each temperature: inside a cluster all methods share it."""
    items, arrays = index.items, index._contents.arrays
    if "residual_centres" in arrays:
        # The products with centre and residual round apart, and five more times than those with a vector.
        centres = np.linalg.norm(arrays["residual_centres"].astype(np.float64), axis=1)
        reach, unit = float((centres + arrays["residual_lengths"]).max()), dot_error(index.dim) + 6 * 2.0**-24
    else:
        reach, unit = longest(items.vectors), dot_error(index.dim)
    largest = reach * longest(queries) + (0.0 if items.bias is None else float(abs(items.bias).max()))
    return [float(f"{unit * largest / temperature:.1e}") for temperature in temperatures]


def _storage(index: Index, queries: Floats, temperatures: Sequence[float]) -> dict[str, Any]:
    """Bytes of the index, and how far rounding to fewer bits may have moved a logit, at each temperature."""
    arrays = [*index._contents.arrays.values(), *index._contents.ids.arrays().values()]
    facts: dict[str, Any] = {"index_bytes": sum(array.nbytes for array in arrays)}
    rounding = index.parameters.get("rounding")
    if rounding is not None:
        moved = longest(queries) * rounding["largest"]
        facts["logits_moved_by"] = [float(f"{moved / temperature:.1e}") for temperature in temperatures]
    return facts


def _choose_queries(index: Index, queries: Any, count: int | None, seed: int) -> tuple[Floats, str, Integers | None]:
    """The queries (b, d), where they are from, and the positions (b,) of items that are queries."""
    if queries is None:
        wanted = min(len(index), QUERIES if count is None else check_count(count, "count"))
        # In random order: vectors are stored cluster by cluster, and only the first queries are timed.
        rows = np.random.default_rng(seed).choice(len(index), size=wanted, replace=False)
        chosen = np.ascontiguousarray(index.items.vectors[rows])
        if len(index) == 1:
            return chosen, "items of the index", None
        return chosen, "items of the index, each left out for itself", rows
    given = check_queries(queries, index.dim)[0]
    if count is None or len(given) <= check_count(count, "count"):
        return given, "given", None
    rows = np.random.default_rng(seed).choice(len(given), size=count, replace=False)
    return np.ascontiguousarray(given[rows]), f"{count} of the {len(given)} given", None


class _Trial:
    """All methods at one temperature."""

    def __init__(
        self,
        index: Index,
        queries: Floats,
        truth: Truth,
        place: int,
        temperature: float,
        *,
        left: LeftOut | None,
        threads: int,
        report: Report | None,
    ) -> None:
        self.index, self.queries, self.temperature = index, queries, temperature
        self.left = left
        self.exclude = None if left is None else left.ids
        self.threads, self.report = threads, report
        self.truth = truth.log_masses[place]
        self.log_partition = truth.log_partition[place]
        self.dispersion = name_dispersion(index.parameters)

    def rows(self, methods: Sequence[AuditMethod], slate: int | None) -> list[Row]:
        """One row per method; slate: items of the slates to time."""
        seconds = self._time(methods)
        reference = float(np.median(seconds[EXACT]))
        rows = []
        for done, method in enumerate(methods, 1):
            rows.append(self._row(method, seconds[method], reference))
            self._report("distances", done, len(methods))
        if slate is None:
            return rows
        stated = [row.stated_error for row in rows]
        told = partial(self._report, "slates")
        decided = time_decisions(self.index, self.queries, methods, self.temperature, slate, stated, told)
        return [replace(row, decided=one) for row, one in zip(rows, decided, strict=True)]

    def _report(self, stage: str, done: int, total: int) -> None:
        if self.report is not None:
            self.report(f"{stage}, t = {self.temperature:g}", done, total)

    def _draw(self, method: AuditMethod, queries: Floats, threads: int, exclude: Any = None) -> Draws:
        options = {**method.options, "exclude": exclude, "threads": threads}
        return self.index.sample(queries, temperature=self.temperature, seed=0, **options)

    def _time(self, methods: Sequence[AuditMethod]) -> dict[AuditMethod, Doubles]:
        """Seconds of each draw; exact is always timed, as the speed-up is relative to it."""

        def draw(row: int, method: AuditMethod) -> Draws:
            return self._draw(method, self.queries[row], 1, None if self.exclude is None else self.exclude[row])

        functions = {method: partial(draw, method=method) for method in dict.fromkeys((EXACT, *methods))}
        # A first round without the clock: the first call of each method does extra work once.
        warm = take_turns(functions, range(min(2, len(self.queries))))
        affordable = int(TIMED_SECONDS / max(float(warm[EXACT].min()), 1e-9))
        timed = min(len(self.queries), TIMED, max(FEWEST_TIMED, affordable))
        return take_turns(functions, range(timed), report=lambda done, total: self._report("timing", done, total))

    def _row(self, method: AuditMethod, seconds: Doubles, reference: float) -> Row:
        draws = self._draw(method, self.queries, self.threads, exclude=self.exclude)
        distances, estimate = self._measure(method)
        microseconds = Measured(*(value * 1e6 for value in median_interval(seconds)))
        missed = None if estimate is None else _mean(np.abs(estimate - self.log_partition[: len(estimate)]))
        stated = np.asarray(draws.error)
        states = not np.isnan(stated).any()
        judged = states and method.estimates
        return Row(
            method=method.spec,
            label=method.label(self.dispersion),
            temperature=self.temperature,
            kl=_mean(distances.kl),
            reverse_kl=_mean(distances.reverse_kl),
            total_variation=_mean(distances.total_variation),
            ratio_spread=_mean(distances.ratio_spread),
            log_partition_error=missed,
            stated_error=float(stated.mean()) if states else None,
            microseconds=microseconds,
            speedup=reference * 1e6 / microseconds.value,
            items_scored=float(np.mean(draws.items_scored)),
            memory=draw_bytes(self.index, method.method),
            proven=method.method == CERTIFIED,
            covered=float((distances.total_variation <= stated).mean()) if judged else None,
            exceeded=float((distances.total_variation > 2 * stated + SLACK).mean()) if judged else None,
            confidence=draws.confidence,
        )

    def _measure(self, method: AuditMethod) -> tuple[Distances, Doubles | None]:
        """Distances from the softmax, and estimates of log Z for all queries or the first of them."""
        options: dict[str, Any] = {"temperature": self.temperature, "threads": self.threads}
        if method.method == TOP_K:
            return self._measure_top_k(), None
        if method.method == CERTIFIED:
            none = np.zeros(len(self.queries))
            first = None if self.exclude is None else self.exclude[:BRACKETED]
            some = self.queries[:BRACKETED]
            value = self.index.log_partition(some, method=CERTIFIED, exclude=first, **options).value
            return Distances(none, none, none, none), np.asarray(value)
        masses = self.index.cluster_log_masses(self.queries, exclude=self.exclude, **options, **method.options)[0]
        estimates = LAWS[method.method].kind != "tree"
        return between(masses, self.truth), np.logaddexp.reduce(masses, axis=1) if estimates else None

    def _measure_top_k(self) -> Distances:
        """The k best keep their softmax among themselves, so the mass they leave out determines every distance."""
        items, left = self.index.items, len(self.index) - (self.left is not None)
        k = min(DEFAULT_K, left)
        options: dict[str, Any] = {
            "temperature": self.temperature,
            "exclude": self.exclude,
            "threads": self.threads,
        }
        best = self.index.top_k(self.queries, k, **options)
        kept, stored = np.empty(len(self.queries)), self.index.ids
        order = np.argsort(stored)
        for row, (query, ids) in enumerate(zip(self.queries, best.ids, strict=True)):
            positions = order[np.searchsorted(stored, ids, sorter=order)]
            best_sum = log_sum_of(items, positions, query, self.temperature)
            kept[row] = best_sum - self.log_partition[row]
        complete = k == left
        # Where nothing is left out, the difference of two large numbers is only rounding.
        kept = np.zeros_like(kept) if complete else np.minimum(kept, 0.0)
        return Distances(
            kl=-kept,
            reverse_kl=np.zeros_like(kept) if complete else np.full_like(kept, np.inf),
            total_variation=-np.expm1(kept),
            ratio_spread=np.sqrt(np.expm1(-kept)),
        )


def _mean(values: Doubles) -> Measured:
    return Measured(*mean_interval(values))
