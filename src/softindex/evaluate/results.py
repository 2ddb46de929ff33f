"""What an audit returns: one row per method and temperature, and a recommendation."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from typing import Any

from softindex.evaluate.figures import Figures
from softindex.evaluate.numbers import short
from softindex.evaluate.output import write_output
from softindex.evaluate.slates import Decided
from softindex.records import Integers, Json

__all__ = ["LEGEND", "Audit", "Measured", "Row"]

LEGEND = (
    "KL(law || softmax), where the law is the distribution that a method draws from, and TV, the total variation (0 to "
    "1), are measured over all items against the softmax in float64; certified is exact by proof. Stated TV is the "
    "error that a method itself reports with its draws, as draws.error; - where it reports none. Covered is the share "
    "of queries whose TV is at most that (then the share that a calibration promises), exceeded the share above twice "
    "as much plus 0.01. TV, stated TV, the error of log Z and the items scored are means over the queries, and KL "
    "interval is the 95 % interval of the mean. Microseconds are the median of one draw; speed-up is relative to exact."
)
"""What the columns of a table of rows mean."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean over the queries (for latencies a median), with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return short(self.value)


@dataclass(frozen=True, slots=True)
class Row:
    """One method at one temperature."""

    method: str
    """The name to pass to `Index.audit`: sd-2ls, or sd-2ls:16 for 16 probes."""
    label: str
    """The name in tables and plots."""
    temperature: float
    kl: Measured
    """KL(law || softmax), in nats; the law is the distribution that the method draws from."""
    reverse_kl: Measured
    """KL(softmax || law); infinite where the method cannot draw every item."""
    total_variation: Measured
    ratio_spread: Measured
    """Standard deviation of law / softmax under the softmax."""
    log_partition_error: Measured | None
    """|log Z - its estimate|, in nats; None where the method estimates no log Z."""
    stated_error: float | None
    """Mean of the total variation that the method itself reports; None where it reports none."""
    microseconds: Measured
    """Median latency of one draw for one query, on one thread, called from Python."""
    speedup: float
    """How many times faster than `exact`."""
    items_scored: float
    """Mean number of items whose score a draw computes."""
    memory: int
    """Bytes of the index that a draw may read."""
    proven: bool
    """True where the law is the softmax by proof; its distances are then not measured."""
    covered: float | None = None
    """Share of the queries whose total variation is at most the error stated; None where none is, or where it is 0
    because the method is exact."""
    exceeded: float | None = None
    """Share of the queries whose total variation is above twice the error stated plus 0.01."""
    confidence: float | None = None
    """The share that a calibration of the index promises for `covered`; None where there is none for this method and
    temperature."""
    decided: Decided | None = None
    """Slates, exclusions and importance weights; None unless `slate` was passed."""

    @property
    def coverage(self) -> str:
        """`covered` as text, with the share promised."""
        if self.covered is None:
            return "-"
        return f"{self.covered:.0%}" + ("" if self.confidence is None else f" of {self.confidence:.0%}")

    def cells(self) -> dict[str, str]:
        """The row as text for a table, by column."""
        missed = self.log_partition_error
        return {
            "t": f"{self.temperature:g}",
            "method": self.label,
            "KL": str(self.kl),
            "KL interval": "proven" if self.proven else f"{short(self.kl.low)} - {short(self.kl.high)}",
            "TV": str(self.total_variation),
            "stated TV": "-" if self.stated_error is None else short(self.stated_error),
            "covered": self.coverage,
            "exceeded": "-" if self.exceeded is None else f"{self.exceeded:.1%}",
            "log Z error": "-" if missed is None else str(missed),
            "microseconds": f"{self.microseconds.value:,.0f}",
            "speed-up": f"{self.speedup:,.1f}x",
            "items scored": f"{self.items_scored:,.0f}",
        } | (self.decided.cells() if self.decided is not None else {})


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of `Index.audit`: rows, a recommendation, and the data behind the figures of the report."""

    rows: tuple[Row, ...]
    recommended: str | None
    """The method to use on these items for queries like these; None where no method is close enough."""
    recommendation: str
    """The same in one sentence, with the error and the speed to expect."""
    parameters: Json
    """How the index was built, and how it was measured."""
    sizes: Integers
    """(k,) number of items in each cluster."""
    figures: Figures

    def at(self, temperature: float) -> tuple[Row, ...]:
        """The rows of one temperature."""
        return tuple(row for row in self.rows if row.temperature == temperature)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperatures, in the order in which they were given."""
        return tuple(dict.fromkeys(row.temperature for row in self.rows))

    def to_dict(self) -> Json:
        """The rows, the recommendation and the parameters, ready for JSON; infinite values become None."""
        rows = [_finite(asdict(row)) for row in self.rows]
        advice = {"recommended": self.recommended, "recommendation": self.recommendation}
        return {**advice, "parameters": self.parameters, "rows": rows}

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict()` to a JSON file.

        Args:
            path: File to write.

        Raises:
            InputError: When the file cannot be written.
        """
        write_output(path, json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a report with plots and tables: one HTML file that loads nothing else.

        Args:
            path: File to write.

        Raises:
            InputError: When the file cannot be written.
        """
        from softindex.evaluate.report import render

        write_output(path, render(self))

    def __str__(self) -> str:
        cells = [row.cells() for row in self.rows]
        lines = [tuple(cells[0]), *(tuple(row.values()) for row in cells)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(cells[0]))]
        text = "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )
        return f"{text}\n\n{self.recommendation}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
