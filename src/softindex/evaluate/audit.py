"""Measures every method of an index against the softmax itself, on the caller's own queries."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from softindex.arguments import check_count, check_queries, check_seed, check_temperature, check_threads
from softindex.errors import InputError
from softindex.evaluate.contestants import Contestant, choose, law_masses, memory
from softindex.evaluate.distances import Distances, between, mean_interval, median_interval
from softindex.evaluate.figures import Figures, draw_figures
from softindex.evaluate.numbers import power, short
from softindex.evaluate.output import write_output
from softindex.evaluate.tables import machine
from softindex.evaluate.timing import take_turns
from softindex.evaluate.truth import Truth, find_truth, log_sum_of
from softindex.index import Index
from softindex.kernels import dot_error
from softindex.laws import CERTIFIED, LAWS, TOLERANCE, TOP_K, check_tolerance
from softindex.progress import reporting
from softindex.records import Doubles, Floats, Json, Report
from softindex.restrictions import DEFAULT_K

__all__ = ["QUERIES", "TEMPERATURES", "Audit", "Measured", "Row", "run_audit"]

TEMPERATURES = (0.05, 0.1, 0.2)
QUERIES = 300
TIMED = 100
"""Queries whose latency is taken; fewer where one exact draw takes long."""
TIMED_SECONDS = 10.0
"""What the exact draws of one temperature may take."""
FEWEST_TIMED = 20
BRACKETED = 50
"""Queries for which certified brackets log Z, at the price of many scans."""
AS_FAST = 1.15
"""Methods within this factor of the fastest are as fast; the closest of them is recommended."""
EXACT = Contestant("exact")


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean (of latencies: a median) over the queries, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return short(self.value)


@dataclass(frozen=True, slots=True)
class Row:
    """One method at one temperature."""

    method: str
    """As it is asked for: sd-2ls, or sd-2ls:16 with 16 probes."""
    label: str
    temperature: float
    kl: Measured
    """KL(law || softmax), in nats."""
    reverse_kl: Measured
    """KL(softmax || law); infinite for a law that cannot draw every item."""
    total_variation: Measured
    ratio_spread: Measured
    """Standard deviation of law / softmax under the softmax."""
    log_partition_error: Measured | None
    """|log Z - its estimate|, in nats; None for a method that estimates none."""
    stated_error: float | None
    """Mean of the total variation that the method states itself; None where it states none."""
    microseconds: Measured
    """Median latency of one draw for one query, on one thread, called from Python."""
    speedup: float
    """How many times faster than `exact`."""
    items_scored: float
    """Mean number of items whose score a draw computes."""
    memory: int
    """Bytes of the index that a draw may read."""
    proven: bool
    """The law is the softmax by proof; its distances are not measured."""

    def cells(self) -> dict[str, str]:
        """What a table for people shows of the row, by column."""
        missed = self.log_partition_error
        return {
            "t": f"{self.temperature:g}",
            "method": self.label,
            "KL": str(self.kl),
            "95 %": "proven" if self.proven else f"{short(self.kl.low)} - {short(self.kl.high)}",
            "TV": str(self.total_variation),
            "stated TV": "-" if self.stated_error is None else short(self.stated_error),
            "log Z error": "-" if missed is None else str(missed),
            "microseconds": f"{self.microseconds.value:,.0f}",
            "speed-up": f"{self.speedup:,.1f}x",
            "items scored": f"{self.items_scored:,.0f}",
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """What `index.audit` found: rows, a recommendation, and what the figures of the report show."""

    rows: tuple[Row, ...]
    recommended: str | None
    """The method to use on these items for queries like these, as it is asked for; None where none is close enough."""
    recommendation: str
    """The same in one sentence, with what it promises and costs."""
    parameters: Json
    """How the index was built, and how it was measured."""
    sizes: Any
    """(k,) items in each cluster."""
    figures: Figures

    def at(self, temperature: float) -> tuple[Row, ...]:
        """The rows of one temperature."""
        return tuple(row for row in self.rows if row.temperature == temperature)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperatures, in the order in which they were asked for."""
        return tuple(dict.fromkeys(row.temperature for row in self.rows))

    def to_dict(self) -> Json:
        """The rows, the recommendation and the parameters, ready for JSON: what is infinite is None."""
        rows = [_finite(asdict(row)) for row in self.rows]
        told = {"recommended": self.recommended, "recommendation": self.recommendation}
        return {**told, "parameters": self.parameters, "rows": rows}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` to a file."""
        write_output(path, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a report for people: one file with plots and tables, which needs nothing else."""
        from softindex.evaluate.report import render

        write_output(path, render(self))

    def __str__(self) -> str:
        cells = [row.cells() for row in self.rows]
        lines = [tuple(cells[0]), *(tuple(one.values()) for one in cells)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(cells[0]))]
        text = "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )
        return f"{text}\n\n{self.recommendation}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def run_audit(
    index: Index,
    queries: Any,
    *,
    count: int | None,
    temperatures: Any,
    methods: Any,
    tolerance: float | None,
    seed: int,
    threads: int | None,
    progress: bool,
) -> Audit:
    """Measure methods against the softmax; see `Index.audit`, which has the defaults."""
    key, workers = check_seed(seed), check_threads(threads)
    heats = _check_temperatures(temperatures)
    contestants = choose(index, methods)
    allowed = TOLERANCE if tolerance is None else check_tolerance(tolerance)
    if allowed >= 1:
        raise InputError(f"tolerance is {allowed:g}, but no total variation is above 1; take one below, such as 0.03.")
    asked, source = _choose_queries(index, queries, count, key)
    with reporting(progress) as report:
        truth = find_truth(index._contents, asked, heats, threads=workers, report=report)
        rows: list[Row] = []
        for place, heat in enumerate(heats):
            rows += _Trial(index, asked, truth, place, heat, workers, report).rows(contestants)
        figures = draw_figures(index, asked, truth, heats, threads=workers)
    parameters = {
        **index.parameters,
        "queries": len(asked),
        "queries_are": source,
        "temperatures": heats,
        "tolerance": allowed,
        "audit_seed": key,
        "logits_rounded_by": [_rounded(index, asked, heat) for heat in heats],
        "latencies": "one thread, called from Python",
        "machine": machine(),
    }
    recommended, sentence = recommend(rows, allowed)
    return Audit(tuple(rows), recommended, sentence, parameters, index.sizes, figures)


def _rounded(index: Index, queries: Floats, heat: float) -> float:
    """What float32 may put a logit off by at most: inside a cluster every law is the softmax of rounded scores."""
    longest = float(index._contents.moments.norm_max.max()) * float(
        np.sqrt((queries.astype(np.float64) ** 2).sum(axis=1).max())
    )
    return float(f"{dot_error(index.dim) * longest / heat:.1e}")


def _check_temperatures(temperatures: Any) -> list[float]:
    asked = (
        list(temperatures)
        if isinstance(temperatures, Iterable) and not isinstance(temperatures, str)
        else [temperatures]
    )
    if not asked:
        raise InputError("there are no temperatures; pass at least one, such as 0.1.")
    return list(dict.fromkeys(check_temperature(heat) for heat in asked))


def _choose_queries(index: Index, queries: Any, count: int | None, seed: int) -> tuple[Floats, str]:
    """The queries (b, d) and where they are from."""
    if queries is None:
        wanted = min(len(index), QUERIES if count is None else check_count(count, "count"))
        # In random order: the vectors stand cluster by cluster, and the first queries are looked at more closely.
        rows = np.random.default_rng(seed).choice(len(index), size=wanted, replace=False)
        return np.ascontiguousarray(index._contents.vectors[rows]), "items of the index"
    asked = check_queries(queries, index.dim)[0]
    if count is None or len(asked) <= check_count(count, "count"):
        return asked, "given"
    rows = np.random.default_rng(seed).choice(len(asked), size=count, replace=False)
    return np.ascontiguousarray(asked[rows]), f"{count} of the {len(asked)} given"


class _Trial:
    """All methods at one temperature."""

    def __init__(
        self, index: Index, queries: Floats, truth: Truth, place: int, heat: float, threads: int, report: Report | None
    ) -> None:
        self.index, self.queries, self.heat, self.threads, self.report = index, queries, heat, threads, report
        self.truth = truth.log_masses[place]
        self.log_partition = truth.log_partition[place]

    def rows(self, contestants: Sequence[Contestant]) -> list[Row]:
        """One row per contestant."""
        seconds = self._time(contestants)
        reference = float(np.median(seconds[EXACT]))
        found = []
        for done, contestant in enumerate(contestants, 1):
            found.append(self._row(contestant, seconds[contestant], reference))
            self._tell("distances", done, len(contestants))
        return found

    def _tell(self, stage: str, done: int, total: int) -> None:
        if self.report is not None:
            self.report(f"{stage}, t = {self.heat:g}", done, total)

    def _draw(self, contestant: Contestant, queries: Floats, threads: int) -> Any:
        return self.index.sample(queries, temperature=self.heat, seed=0, threads=threads, **contestant.options)

    def _time(self, contestants: Sequence[Contestant]) -> dict[Contestant, Doubles]:
        """Seconds of each draw; exact always takes part, as the others are compared with it."""
        functions = {
            contestant: lambda query, contestant=contestant: self._draw(contestant, query, 1)
            for contestant in dict.fromkeys((EXACT, *contestants))
        }
        # Once around before the clock runs: the first call of each law prepares it.
        warm = take_turns(functions, list(self.queries[:2]))
        affordable = int(TIMED_SECONDS / max(float(warm[EXACT].min()), 1e-9))
        timed = min(len(self.queries), TIMED, max(FEWEST_TIMED, affordable))
        return take_turns(
            functions, list(self.queries[:timed]), report=lambda done, total: self._tell("timing", done, total)
        )

    def _row(self, contestant: Contestant, seconds: Doubles, reference: float) -> Row:
        draws = self._draw(contestant, self.queries, self.threads)
        distances, estimate = self._measure(contestant)
        microseconds = Measured(*(value * 1e6 for value in median_interval(seconds)))
        missed = None if estimate is None else _mean(np.abs(estimate - self.log_partition[: len(estimate)]))
        stated = np.asarray(draws.error)
        return Row(
            method=contestant.spec,
            label=contestant.label,
            temperature=self.heat,
            kl=_mean(distances.kl),
            reverse_kl=_mean(distances.reverse_kl),
            total_variation=_mean(distances.total_variation),
            ratio_spread=_mean(distances.ratio_spread),
            log_partition_error=missed,
            stated_error=None if np.isnan(stated).any() else float(stated.mean()),
            microseconds=microseconds,
            speedup=reference * 1e6 / microseconds.value,
            items_scored=float(np.mean(draws.items_scored)),
            memory=memory(self.index._contents, contestant.method),
            proven=contestant.method == CERTIFIED,
        )

    def _measure(self, contestant: Contestant) -> tuple[Distances, Doubles | None]:
        """Distances from the softmax, and the estimates of log Z, of all queries or the first of them."""
        if contestant.method == TOP_K:
            return self._measure_top_k(), None
        if contestant.method == CERTIFIED:
            nothing = np.zeros(len(self.queries))
            few = self.queries[:BRACKETED]
            value = self.index.log_partition(few, temperature=self.heat, method=CERTIFIED, threads=self.threads).value
            return Distances(nothing, nothing, nothing, nothing), np.asarray(value)
        masses = law_masses(self.index, self.queries, contestant, self.heat, self.threads)[0]
        estimates = LAWS[contestant.method].kind != "tree"
        return between(masses, self.truth), np.logaddexp.reduce(masses, axis=1) if estimates else None

    def _measure_top_k(self) -> Distances:
        """The k best keep their softmax among themselves: all is told by the mass that they leave out."""
        contents, k = self.index._contents, min(DEFAULT_K, len(self.index))
        best = self.index.top_k(self.queries, k, temperature=self.heat, threads=self.threads)
        kept = np.empty(len(self.queries))
        for row, (query, ids) in enumerate(zip(self.queries, best.ids, strict=True)):
            best_sum = log_sum_of(contents.vectors, contents.ids.find(ids), query, self.heat, contents.log_bias)
            kept[row] = best_sum - self.log_partition[row]
        whole = k == len(self.index)
        # Where nothing is left out, what is left of two large numbers is rounding.
        kept = np.zeros_like(kept) if whole else np.minimum(kept, 0.0)
        left_out = -np.expm1(kept)
        return Distances(
            -kept,
            np.zeros_like(kept) if whole else np.full_like(kept, np.inf),
            left_out,
            np.sqrt(np.expm1(-kept)),
        )


def _mean(values: Doubles) -> Measured:
    return Measured(*mean_interval(values))


def recommend(rows: Sequence[Row], tolerance: float) -> tuple[str | None, str]:
    """The fastest method whose total variation is within the tolerance at every temperature: as asked for, in words."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    far = {name: max(row.total_variation.high for row in found) for name, found in by_method.items()}
    close = {name: found for name, found in by_method.items() if far[name] <= tolerance}
    if not close:
        name = min(far, key=far.__getitem__)
        return None, (
            f"none of these methods is within a total variation of {tolerance:g} at every temperature; the closest, "
            f"{_phrase(name)}, is {short(max(row.total_variation.value for row in by_method[name]))} off"
            + ("." if EXACT.spec in by_method else ": audit certified or exact too.")
        )
    costs = {name: float(np.mean([np.log(row.microseconds.value) for row in found])) for name, found in close.items()}
    fastest = min(costs.values())
    name = min((name for name, cost in costs.items() if cost <= fastest + np.log(AS_FAST)), key=far.__getitem__)
    return name, f"{_phrase(name)}: {_praise(name, close[name], tolerance)}."


def _praise(name: str, found: Sequence[Row], tolerance: float) -> str:
    """What the recommended method promises and costs, worst temperature included."""
    if name == EXACT.spec:
        return f"none of the others is faster and within a total variation of {tolerance:g}"
    speeds = [f"{row.speedup:.1f}" if row.speedup < 10 else f"{row.speedup:,.0f}" for row in found]
    slowest, fastest = (pick(zip([row.speedup for row in found], speeds, strict=True))[1] for pick in (min, max))
    speed = slowest if slowest == fastest else f"{slowest} to {fastest}"
    if max(row.speedup for row in found) < 1:
        return f"within a total variation of {tolerance:g}, but exact is faster here"
    if found[0].proven:
        return f"the softmax itself at {speed} times the speed of exact"
    kl, far = max(row.kl.value for row in found), max(row.total_variation.value for row in found)
    error = f"KL {power(kl, 1, up=True)} and total variation {power(far, 1, up=True)}"
    return f"{error}{' at most' if len(found) > 1 else ''}, at {speed} times the speed of exact"


def _phrase(spec: str) -> str:
    method, _, probes = spec.partition(":")
    return Contestant(method, int(probes) if probes else None).phrase
