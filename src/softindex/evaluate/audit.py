"""Measures every method of an index against the softmax itself, on the caller's own queries."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from softindex.errors import InputError
from softindex.evaluate.contestants import Contestant, choose, law_masses, memory
from softindex.evaluate.distances import Distances, between, mean_interval, median_interval
from softindex.evaluate.figures import Figures, draw_figures
from softindex.evaluate.output import write_output
from softindex.evaluate.timing import take_turns
from softindex.evaluate.truth import Truth, find_truth
from softindex.index import Index
from softindex.laws import CERTIFIED, LAWS, TOLERANCE, TOP_K, check_tolerance
from softindex.progress import reporting
from softindex.records import Doubles, Floats, Json, Report
from softindex.restrictions import DEFAULT_K
from softindex.vectors import check_count, check_queries, check_seed, check_temperature, check_threads

__all__ = ["QUERIES", "TEMPERATURES", "Audit", "Measured", "Row", "run_audit"]

TEMPERATURES = (0.05, 0.1, 0.2)
QUERIES = 300
TIMED = 100
"""Queries whose latency is taken; fewer where one exact draw takes long."""
TIMED_SECONDS = 10.0
"""What the exact draws of one temperature may take."""
FEWEST_TIMED = 20
EXACT = Contestant("exact")


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean (of latencies: a median) over the queries, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2g}"


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


@dataclass(frozen=True, slots=True)
class Audit:
    """What `index.audit` found: rows, a recommendation, and what the figures of the report show."""

    rows: tuple[Row, ...]
    recommendation: str
    """One sentence: what to use on these items for queries like these."""
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
        return {"recommendation": self.recommendation, "parameters": self.parameters, "rows": rows}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` to a file."""
        write_output(path, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a report for people: one file with plots and tables, which needs nothing else."""
        from softindex.evaluate.report import render

        write_output(path, render(self))

    def __str__(self) -> str:
        head = ("t", "method", "KL", "TV", "stated", "microseconds", "speed-up", "items scored")
        lines = [head] + [
            (
                f"{row.temperature:g}",
                row.label,
                str(row.kl),
                str(row.total_variation),
                "-" if row.stated_error is None else f"{row.stated_error:.2g}",
                f"{row.microseconds.value:,.0f}",
                f"{row.speedup:,.1f}x",
                f"{row.items_scored:,.0f}",
            )
            for row in self.rows
        ]
        widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
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
    queries: Any = None,
    *,
    count: int | None = None,
    temperatures: Any = TEMPERATURES,
    methods: Any = None,
    tolerance: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool = False,
) -> Audit:
    """Measure methods against the softmax; see `Index.audit`."""
    key, workers = check_seed(seed), check_threads(threads)
    heats = _check_temperatures(temperatures)
    contestants = choose(index, methods)
    allowed = TOLERANCE if tolerance is None else check_tolerance(tolerance)
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
    }
    return Audit(tuple(rows), recommend(rows, allowed), parameters, index.sizes, figures)


def _check_temperatures(temperatures: Any) -> list[float]:
    asked = [temperatures] if np.ndim(temperatures) == 0 else list(temperatures)
    if not asked:
        raise InputError("there are no temperatures; pass at least one, such as 0.1.")
    return list(dict.fromkeys(check_temperature(heat) for heat in asked))


def _choose_queries(index: Index, queries: Any, count: int | None, seed: int) -> tuple[Floats, str]:
    """The queries (b, d) and where they are from."""
    if queries is None:
        wanted = min(len(index), QUERIES if count is None else check_count(count, "count"))
        rows = np.random.default_rng(seed).choice(len(index), size=wanted, replace=False)
        return np.ascontiguousarray(index._contents.vectors[np.sort(rows)]), "items of the index"
    asked = check_queries(queries, index.dim)[0]
    if count is None or len(asked) <= check_count(count, "count"):
        return asked, "given"
    rows = np.random.default_rng(seed).choice(len(asked), size=count, replace=False)
    return np.ascontiguousarray(asked[np.sort(rows)]), f"{count} of the {len(asked)} given"


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
        slowest = float(np.median(seconds[EXACT]))
        found = []
        for done, contestant in enumerate(contestants, 1):
            found.append(self._row(contestant, seconds[contestant], slowest))
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

    def _row(self, contestant: Contestant, seconds: Doubles, slowest: float) -> Row:
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
            speedup=slowest * 1e6 / microseconds.value,
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
            few = self.queries[:FEWEST_TIMED]
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
            positions = contents.ids.find(ids)
            logits = contents.vectors[positions].astype(np.float64) @ query.astype(np.float64) / self.heat
            if contents.log_bias is not None:
                logits += contents.log_bias[positions]
            kept[row] = np.logaddexp.reduce(logits) - self.log_partition[row]
        kept = np.minimum(kept, 0.0)
        left_out = -np.expm1(kept)
        whole = k == len(self.index)
        return Distances(
            -kept,
            np.zeros_like(kept) if whole else np.full_like(kept, np.inf),
            left_out,
            np.sqrt(np.expm1(-kept)),
        )


def _mean(values: Doubles) -> Measured:
    return Measured(*mean_interval(values))


def recommend(rows: Sequence[Row], tolerance: float) -> str:
    """The fastest method whose total variation is within the tolerance at every temperature, in one sentence."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)

    def cost(found: list[Row]) -> float:
        return float(np.mean([np.log(row.microseconds.value) for row in found]))

    close = {
        name: found for name, found in by_method.items() if max(row.total_variation.high for row in found) <= tolerance
    }
    if not close:
        name, found = min(by_method.items(), key=lambda pair: max(row.total_variation.value for row in pair[1]))
        worst = max(row.total_variation.value for row in found)
        return (
            f"none of these methods is within a total variation of {tolerance:g} at every temperature; the closest, "
            f"{_phrase(name)}, is {worst:.2g} off: audit certified or exact too."
        )
    name, found = min(close.items(), key=lambda pair: cost(pair[1]))
    worst = max(row.kl.value for row in found)
    slowest, fastest = min(row.speedup for row in found), max(row.speedup for row in found)
    if name == EXACT.spec:
        return f"exact: nothing else is as fast within a total variation of {tolerance:g}."
    speed = f"{slowest:,.0f}" if f"{slowest:,.0f}" == f"{fastest:,.0f}" else f"{slowest:,.0f} to {fastest:,.0f}"
    said = (
        "the softmax itself"
        if found[0].proven
        else f"KL {_power(worst)}"
        if len(found) == 1
        else f"KL {_power(worst)} at most"
    )
    return f"{_phrase(name)}: {said} at {speed} times the speed of exact."


def _power(value: float) -> str:
    """One digit and a power of ten, as in 8e-4."""
    digit, _, power = f"{value:.0e}".partition("e")
    return f"{digit}e{int(power)}"


def _phrase(spec: str) -> str:
    method, _, probes = spec.partition(":")
    return Contestant(method, int(probes) if probes else None).phrase
