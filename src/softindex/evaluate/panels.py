"""The figures of an audit as panels: for its report, and for files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from softindex.evaluate.charts import Axis, Series, figure, histogram, plot
from softindex.evaluate.methods import DEFAULT, DEFAULT_LABEL
from softindex.evaluate.numbers import short
from softindex.records import Doubles

if TYPE_CHECKING:
    from softindex.evaluate.results import Audit, Row

__all__ = ["Panel", "files", "items", "pareto", "pareto_labels", "ratios", "sizes"]

FAMILIES = {
    "sd-2ls": 0,
    "2ls": 1,
    "s-2ls": 2,
    "hierarchical": 3,
    "s-hierarchical": 3,
    "sd-hierarchical": 3,
    "exact": 4,
    "top-k": 5,
    "certified": 7,
}
"""The style of each method in the plots."""
STAR = 6
LEAST_KL = 1e-9
DOTS = 1200
"""Clusters shown in a plot; a random choice where there are more."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: its name, a note on what it shows, and the SVG."""

    caption: str
    note: str
    picture: str

    @property
    def aside(self) -> str:
        """The note, to follow the caption."""
        return f": {self.note}" if self.caption and self.note else ""


def files(audit: Audit) -> dict[str, str]:
    """The figures as SVG files, by name: error against latency, and figures 1 to 4 of the two-level paper."""
    by_size, by_variance = ratios(audit).values()
    stem = "Probability under each method, divided by that under the softmax, of"
    return {
        "pareto": _file(
            pareto(audit), "Error against latency of every method", _pareto_text(audit), pareto_labels(audit)
        ),
        "ratios-by-size": _file(by_size, f"{stem} clusters by their size"),
        "ratios-by-variance": _file(by_variance, f"{stem} clusters by the variance of their scores"),
        "ratios-of-items": _file(items(audit), f"{stem} items, for one query"),
        "cluster-sizes": _file([sizes(audit)], "Sizes of the clusters"),
    }


def _file(shown: Sequence[Panel], title: str, text: str = "", labels: Sequence[tuple[str, int]] = ()) -> str:
    said = text or "; ".join(f"{one.caption}{one.aside}" if one.caption else one.note for one in shown)
    return figure([(one.caption, one.picture) for one in shown], labels, title=title, text=said)


def pareto(audit: Audit) -> list[Panel]:
    """Error against latency, a panel per temperature."""
    x, y = _pareto_axes(audit)
    return [Panel(f"Temperature {t:g}", "", _pareto_panel(audit, t, x, y)) for t in audit.temperatures]


def pareto_labels(audit: Audit) -> list[tuple[str, int]]:
    """The labels of the methods in the plots of error against latency, and their styles."""
    styles = dict.fromkeys(FAMILIES[_family(row)] for row in audit.rows)
    names = {style: ", ".join(name for name in _families(audit) if FAMILIES[name] == style) for style in styles}
    labels = [(name, style) for style, name in names.items()]
    starred = any(row.method == DEFAULT.spec for row in audit.rows)
    return [*labels, (DEFAULT_LABEL, STAR)] if starred else labels


def _family(row: Row) -> str:
    return row.method.partition(":")[0]


def _families(audit: Audit) -> list[str]:
    return list(dict.fromkeys(_family(row) for row in audit.rows))


def _pareto_axes(audit: Audit) -> tuple[Axis, Axis]:
    """The same axes for all temperatures."""
    x = Axis.around("microseconds per draw", np.array([row.microseconds.value for row in audit.rows]), log=True)
    measured = [row.kl.value for row in audit.rows if not _is_softmax(row) and np.isfinite(row.kl.value)]
    shown = np.maximum(np.array(measured or [1e-3]), LEAST_KL)
    low, high = 10.0 ** (np.floor(np.log10(shown.min())) - 1), max(1.0, float(shown.max()) * 2)
    return x, Axis("KL(law || softmax)", float(low), high, log=True, floor="exact")


def _is_softmax(row: Row) -> bool:
    return row.proven or row.method == "exact"


def _pareto_panel(audit: Audit, temperature: float, x: Axis, y: Axis) -> str:
    by_family: dict[str, list[Row]] = {}
    for row in audit.at(temperature):
        by_family.setdefault(_family(row), []).append(row)
    series = []
    for name, rows in by_family.items():
        series.append(_line([row for row in rows if ":" in row.method], FAMILIES[name], name))
        # Adaptive probes do not belong on the line from few probes to many.
        alone = [row for row in rows if ":" not in row.method]
        series += [_line([row], STAR if row.method == DEFAULT.spec else FAMILIES[name], row.label) for row in alone]
    title, text = f"KL against latency at temperature {temperature:g}", _pareto_text(audit, temperature)
    return plot(series, x, y, title=title, text=text)


def _line(rows: Sequence[Row], style: int, label: str) -> Series:
    ordered = sorted(rows, key=lambda row: row.microseconds.value)
    return Series(
        label,
        np.array([row.microseconds.value for row in ordered]),
        np.array([0.0 if _is_softmax(row) else row.kl.value for row in ordered]),
        style,
        joined=len(ordered) > 1,
        notes=[f"{row.label}: KL {short(row.kl.value)}, {row.microseconds.value:,.0f} microseconds" for row in ordered],
    )


def _pareto_text(audit: Audit, temperature: float | None = None) -> str:
    rows = audit.rows if temperature is None else audit.at(temperature)
    return "; ".join(
        f"{row.label}"
        + (f" at t = {row.temperature:g}" if temperature is None else "")
        + f": KL {short(row.kl.value)} in {row.microseconds.value:,.0f} microseconds"
        for row in rows
    )


def ratios(audit: Audit) -> dict[str, list[Panel]]:
    """Sampling ratios of the clusters, a panel per method: by size, and by the variance of the scores inside."""
    shown, counts = audit.figures, np.asarray(audit.sizes, float)
    filled = np.flatnonzero(counts > 0)
    chosen = filled if len(filled) <= DOTS else np.sort(np.random.default_rng(0).choice(filled, DOTS, replace=False))
    everything = np.concatenate([ratio[chosen] for ratio in shown.ratios.values()])
    y = Axis.around("method / softmax", np.clip(everything, 1e-3, 1e3), log=True)
    found = {}
    for name, values in (("items in the cluster", counts), ("variance of the scores in the cluster", shown.variances)):
        positive = values[chosen][values[chosen] > 0]
        x = Axis.around(name, positive, log=True)
        found[name] = [
            Panel(label, _bias(ratio[chosen], "clusters"), _ratio_panel(label, values[chosen], ratio[chosen], x, y))
            for label, ratio in shown.ratios.items()
        ]
    return found


def _bias(ratio: Doubles, things: str) -> str:
    low, high = np.quantile(ratio, [0.05, 0.95])
    return f"90 % of the {things} between {low:.3g} and {high:.3g}"


def _ratio_panel(label: str, values: Doubles, ratio: Doubles, x: Axis, y: Axis) -> str:
    dots = Series(label, values, ratio, _style(label), small=True)
    return plot(
        [dots], x, y, title=f"Sampling ratio of {label} against the {x.name}", text=_bias(ratio, "clusters"), rule=1.0
    )


def items(audit: Audit) -> list[Panel]:
    """Sampling ratios of items for one query, a panel per method."""
    shown = audit.figures
    found = {label: np.exp(np.clip(logs - shown.softmax, -50, 50)) for label, logs in shown.log_prob.items()}
    x = Axis.around("log-probability under the softmax", shown.softmax)
    y = Axis.around("method / softmax", np.clip(np.concatenate(list(found.values())), 1e-3, 1e3), log=True)
    return [
        Panel(label, _bias(ratio, "items"), _item_panel(label, shown.softmax, ratio, x, y))
        for label, ratio in found.items()
    ]


def _item_panel(label: str, softmax: Doubles, ratio: Doubles, x: Axis, y: Axis) -> str:
    dots = Series(label, softmax, ratio, _style(label), small=True)
    title = f"Probability of items under {label}, divided by that under the softmax"
    return plot([dots], x, y, title=title, text=_bias(ratio, "items"), rule=1.0)


def _style(label: str) -> int:
    return STAR if label == DEFAULT_LABEL else FAMILIES[label.partition(",")[0]]


def sizes(audit: Audit) -> Panel:
    """A histogram of the sizes of the clusters."""
    counts = np.asarray(audit.sizes, float)
    filled = counts[counts > 0]
    low, middle, high = (float(value) for value in (filled.min(), np.median(filled), filled.max()))
    text = f"{len(filled):,} clusters of {low:,.0f} to {high:,.0f} items; the median is {middle:,.0f}"
    log = high > 20 * low
    axis = (
        Axis("items in the cluster", low / 1.05, high * 1.05, log) if high > low else Axis("items", low - 1, high + 1)
    )
    return Panel("", text, histogram(filled, axis, bins=40, title="Sizes of the clusters", text=text))
