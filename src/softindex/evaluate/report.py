"""An audit as one HTML file that needs nothing else: the plots, the tables, and how to read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from softindex.evaluate.charts import STYLE, Axis, Series, figure, histogram, legend, plot
from softindex.evaluate.contestants import DEFAULT
from softindex.evaluate.numbers import short
from softindex.records import Doubles

if TYPE_CHECKING:
    from softindex.evaluate.audit import Audit, Measured, Row

__all__ = ["pareto_figure", "render"]

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
"""Clusters shown in a plot; a choice of them where there are more."""
PAGE = """
body{margin:0 auto;max-width:80rem;padding:1rem;font:16px/1.5 system-ui,sans-serif}
body{color:var(--ink);background:var(--page)}
:root{--page:#fff;--card:#f4f6f9}@media(prefers-color-scheme:dark){:root{--page:#14171c;--card:#1e232b}}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.15rem;margin:2.2rem 0 .3rem}h3{font-size:1rem;margin:1rem 0 .2rem}
p{margin:.4rem 0;max-width:46rem}.soft,small,caption{color:var(--soft)}
.advice{background:var(--card);border-left:4px solid var(--c0);padding:.8rem 1rem;font-size:1.1rem;max-width:none}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,15.5rem),1fr));gap:.6rem 1rem}
.panels figure{margin:0;min-width:0;max-width:26rem}.panels svg{width:100%;height:auto;display:block}
figcaption{font-size:.9rem;color:var(--soft)}figcaption b{color:var(--ink)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;max-width:none;font-size:.9rem}
.key{display:inline-flex;gap:.35rem;align-items:center}
.scroll{overflow-x:auto;margin:.5rem 0}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .4rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--page)}
td small{display:block;line-height:1.1}tr.chosen td{font-weight:600}tr.chosen td small{font-weight:400}
caption{text-align:left;padding:.3rem 0}dt{font-weight:600}dd{margin:0 0 .5rem}dl{max-width:46rem}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;font-size:.9rem}.facts dd{margin:0}
"""


def render(audit: Audit) -> str:
    """The whole page."""
    facts = audit.parameters
    subject = f"{facts['items']:,} items of {facts['dim']} dimensions in {facts['clusters']:,} clusters"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>softindex audit: {escape(subject)}</title><style>{STYLE}{PAGE}</style></head><body>",
        f"<h1>softindex audit</h1><p>{escape(subject)}; {facts['queries']} queries ({facts['queries_are']}).</p>",
        f'<p class="advice">{escape(audit.recommendation)}</p>',
        *_pareto(audit),
        *_ratios(audit),
        *_items(audit),
        *_sizes(audit),
        *_tables(audit),
        *_reading(),
        *_parameters(audit),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def pareto_figure(audit: Audit) -> str:
    """The plot of error against latency as an SVG that stands alone."""
    x, y = _pareto_axes(audit)
    panels = [(f"temperature {heat:g}", _pareto_panel(audit, heat, x, y)) for heat in audit.temperatures]
    return figure(
        panels, _pareto_labels(audit), title="Error against latency of every method", text=_pareto_text(audit)
    )


def _pareto(audit: Audit) -> Iterable[str]:
    yield "<h2>What an error costs to avoid</h2>"
    yield (
        "<p>Each mark is a method: down is closer to the softmax, left is faster. A line joins one method with several "
        "numbers of probes, more of them to the right; its mark off the line has adaptive ones.</p>"
    )
    yield legend(_pareto_labels(audit))
    x, y = _pareto_axes(audit)
    yield _panels((f"<b>Temperature {heat:g}</b>", _pareto_panel(audit, heat, x, y)) for heat in audit.temperatures)


def _pareto_labels(audit: Audit) -> list[tuple[str, int]]:
    styles = dict.fromkeys(FAMILIES[_family(row)] for row in audit.rows)
    names = {style: ", ".join(name for name in _families(audit) if FAMILIES[name] == style) for style in styles}
    labels = [(name, style) for style, name in names.items()]
    starred = any(row.method == DEFAULT.spec for row in audit.rows)
    return [*labels, (DEFAULT.label, STAR)] if starred else labels


def _family(row: Row) -> str:
    return row.method.partition(":")[0]


def _families(audit: Audit) -> list[str]:
    return list(dict.fromkeys(_family(row) for row in audit.rows))


def _pareto_axes(audit: Audit) -> tuple[Axis, Axis]:
    """The same for all temperatures."""
    x = Axis.around("microseconds a draw", np.array([row.microseconds.value for row in audit.rows]), log=True)
    measured = [row.kl.value for row in audit.rows if not _is_softmax(row) and np.isfinite(row.kl.value)]
    found = np.maximum(np.array(measured or [1e-3]), LEAST_KL)
    low, high = 10.0 ** (np.floor(np.log10(found.min())) - 1), max(1.0, float(found.max()) * 2)
    return x, Axis("KL(law || softmax)", float(low), high, log=True, floor="exact")


def _is_softmax(row: Row) -> bool:
    return row.proven or row.method == "exact"


def _pareto_panel(audit: Audit, heat: float, x: Axis, y: Axis) -> str:
    by_family: dict[str, list[Row]] = {}
    for row in audit.at(heat):
        by_family.setdefault(_family(row), []).append(row)
    series = []
    for name, found in by_family.items():
        series.append(_line([row for row in found if ":" in row.method], FAMILIES[name], name))
        # Adaptive probes are no step on the way from few to many.
        alone = [row for row in found if ":" not in row.method]
        series += [_line([row], STAR if row.method == DEFAULT.spec else FAMILIES[name], row.label) for row in alone]
    return plot(series, x, y, title=f"KL against latency at temperature {heat:g}", text=_pareto_text(audit, heat))


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


def _pareto_text(audit: Audit, heat: float | None = None) -> str:
    rows = audit.rows if heat is None else audit.at(heat)
    return "; ".join(
        f"{row.label}"
        + (f" at t = {row.temperature:g}" if heat is None else "")
        + f": KL {short(row.kl.value)} in {row.microseconds.value:,.0f} microseconds"
        for row in rows
    )


def _panels(figures: Iterable[tuple[str, str]]) -> str:
    inside = "".join(f"<figure>{picture}<figcaption>{caption}</figcaption></figure>" for caption, picture in figures)
    return f'<div class="panels">{inside}</div>'


def _ratios(audit: Audit) -> Iterable[str]:
    """Figures 1 and 2 of the paper."""
    shown, sizes = audit.figures, np.asarray(audit.sizes, float)
    held = np.flatnonzero(sizes > 0)
    chosen = held if len(held) <= DOTS else np.sort(np.random.default_rng(0).choice(held, DOTS, replace=False))
    everything = np.concatenate([ratio[chosen] for ratio in shown.ratios.values()])
    y = Axis.around("law / softmax", np.clip(everything, 1e-3, 1e3), log=True)
    yield f"<h2>Where the error comes from, at temperature {shown.temperature:g}</h2>"
    yield (
        "<p>Each dot is a cluster: how often the law goes there over how often the softmax does, both averaged over "
        "the queries. On the dashed line there is no bias. Laws that ignore sizes visit large clusters too seldom; "
        "laws that ignore the spread of scores inside a cluster do so with varied ones.</p>"
    )
    for name, values in (("items in the cluster", sizes), ("variance of the scores in the cluster", shown.variances)):
        positive = values[chosen][values[chosen] > 0]
        x = Axis.around(name, positive, log=True)
        yield f"<h3>Against the {name}</h3>"
        yield _panels(
            (
                f"<b>{escape(label)}</b>: {_bias(ratio[chosen], 'clusters')}",
                _ratio_panel(label, values[chosen], ratio[chosen], x, y),
            )
            for label, ratio in shown.ratios.items()
        )


def _bias(ratio: Doubles, things: str) -> str:
    low, high = np.quantile(ratio, [0.05, 0.95])
    return f"nine {things} in ten between {low:.3g} and {high:.3g}"


def _ratio_panel(label: str, values: Doubles, ratio: Doubles, x: Axis, y: Axis) -> str:
    dots = Series(label, values, ratio, _style(label), small=True)
    return plot(
        [dots], x, y, title=f"Sampling ratio of {label} against the {x.name}", text=_bias(ratio, "clusters"), rule=1.0
    )


def _items(audit: Audit) -> Iterable[str]:
    """Figure 3 of the paper, seen closer: its two probabilities as a ratio, as they span many powers of ten."""
    shown = audit.figures
    yield f"<h2>One query, item by item, at temperature {shown.temperature:g}</h2>"
    yield (
        "<p>Each dot is an item: its probability under the law over that under the softmax, against the latter, for "
        "one of the queries. On the dashed line the law is right. A band is a law that prefers items for the cluster "
        "they are in.</p>"
    )
    ratios = {label: np.exp(np.clip(found - shown.softmax, -50, 50)) for label, found in shown.log_prob.items()}
    x = Axis.around("log-probability under the softmax", shown.softmax)
    y = Axis.around("law / softmax", np.clip(np.concatenate(list(ratios.values())), 1e-3, 1e3), log=True)
    yield _panels(
        (f"<b>{escape(label)}</b>: {_bias(ratio, 'items')}", _item_panel(label, shown.softmax, ratio, x, y))
        for label, ratio in ratios.items()
    )


def _item_panel(label: str, softmax: Doubles, ratio: Doubles, x: Axis, y: Axis) -> str:
    dots = Series(label, softmax, ratio, _style(label), small=True)
    title = f"Probability of items under {label} over that under the softmax"
    return plot([dots], x, y, title=title, text=_bias(ratio, "items"), rule=1.0)


def _style(label: str) -> int:
    return STAR if label == DEFAULT.label else FAMILIES[label.partition(",")[0]]


def _sizes(audit: Audit) -> Iterable[str]:
    """Figure 4 of the paper."""
    sizes = np.asarray(audit.sizes, float)
    held = sizes[sizes > 0]
    low, middle, high = (float(value) for value in (held.min(), np.median(held), held.max()))
    text = f"from {low:,.0f} to {high:,.0f} items, half of them below {middle:,.0f}"
    log = high > 20 * low
    axis = (
        Axis("items in the cluster", low / 1.05, high * 1.05, log) if high > low else Axis("items", low - 1, high + 1)
    )
    yield f"<h2>How large the clusters are</h2><p>{len(held):,} clusters {text}.</p>"
    yield _panels([("", histogram(held, axis, bins=40, title="Sizes of the clusters", text=text))])


HEADS = (
    "method",
    "KL(law ‖ softmax)",
    "KL(softmax ‖ law)",
    "TV",
    "stated TV",
    "ratio spread",
    "log Z error",
    "microseconds",
    "speed-up",
    "items scored",
    "memory",
)


def _tables(audit: Audit) -> Iterable[str]:
    yield "<h2>All figures</h2>"
    note = "Means over the queries, latencies medians; below each its 95 % interval. Bold: recommended."
    yield f'<p class="soft">{note}</p>'
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEADS)
    for heat in audit.temperatures:
        body = "".join(_table_row(row, row.method == audit.recommended) for row in audit.at(heat))
        yield (
            f'<div class="scroll"><table><caption>Temperature {heat:g}</caption><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )


def _table_row(row: Row, chosen: bool) -> str:
    cells = [
        "0, proven" if row.proven else _cell(row.kl),
        "0, proven" if row.proven else _cell(row.reverse_kl),
        "0, proven" if row.proven else _cell(row.total_variation),
        "–" if row.stated_error is None else short(row.stated_error),
        "0, proven" if row.proven else _cell(row.ratio_spread),
        "–" if row.log_partition_error is None else _cell(row.log_partition_error),
        _cell(row.microseconds),
        f"{row.speedup:,.1f}×",
        f"{row.items_scored:,.0f}",
        f"{row.memory / 1e6:,.1f} MB",
    ]
    emphasis = ' class="chosen"' if chosen else ""
    return f"<tr{emphasis}><td>{escape(row.label)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _cell(measured: Measured) -> str:
    if not np.isfinite(measured.value):
        return "∞"
    return f"{short(measured.value)}<small>{short(measured.low)} – {short(measured.high)}</small>"


def _reading() -> Iterable[str]:
    yield "<h2>How to read it</h2><dl>"
    for term, meaning in (
        (
            "law",
            "What a method draws from. Inside a cluster all but top-k are the softmax of its items.",
        ),
        (
            "KL(law ‖ softmax)",
            "The mean of log(law / softmax) over draws from the law, in nats.",
        ),
        ("KL(softmax ‖ law)", "The other direction; infinite for a law that never draws some items, as top-k."),
        (
            "TV",
            "Total variation: the most by which the probability of any event is off. 0.03: three draws in a hundred.",
        ),
        ("stated TV", "What the method itself says of its error with every draw; compare it with TV."),
        (
            "ratio spread",
            "Standard deviation of law / softmax over draws from the softmax: the spread of importance weights.",
        ),
        ("log Z error", "Distance of the estimated log partition function from the true one, in nats."),
        ("published", "The law as its paper has it: a cluster is chosen before any item is looked at (probes=0)."),
        (
            "probes",
            "Clusters that are scanned before a draw; adaptive: until the stated error is within the tolerance.",
        ),
        ("memory", "Bytes of the index that a draw may read."),
    ):
        yield f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>"
    yield "</dl>"


def _parameters(audit: Audit) -> Iterable[str]:
    rows = "".join(
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_plain(value))}</dd>"
        for name, value in audit.parameters.items()
    )
    yield f'<h2>Parameters</h2><dl class="facts">{rows}</dl>'


def _plain(value: object) -> str:
    return ", ".join(str(part) for part in value) if isinstance(value, list) else str(value)
