"""Render an audit as one self-contained HTML page: plots, tables, and how to read them."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from softindex.evaluate import panels
from softindex.evaluate.charts import STYLE, legend
from softindex.evaluate.numbers import short
from softindex.evaluate.panels import Panel

if TYPE_CHECKING:
    from softindex.evaluate.results import Audit, Measured, Row

__all__ = ["render"]

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
    """The report as an HTML page."""
    facts = audit.parameters
    subject = f"{facts['items']:,} items of {facts['dim']} dimensions in {facts['clusters']:,} clusters"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>softindex audit: {escape(subject)}</title><style>{STYLE}{PAGE}</style></head><body>",
        f"<h1>softindex audit</h1><p>{escape(subject)}. {_described_queries(audit)}</p>",
        f'<p class="advice"><b>Recommended:</b> {escape(audit.recommendation)}</p>',
        *_pareto(audit),
        *_ratios(audit),
        *_items(audit),
        *_sizes(audit),
        *_tables(audit),
        *_slates(audit),
        *_reading(),
        *_parameters(audit),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _described_queries(audit: Audit) -> str:
    count, source = audit.parameters["queries"], audit.parameters["queries_are"]
    if source == "items of the index":
        return f"Measured with {count} items of the index as queries."
    return f"Measured with {count} queries ({escape(str(source))})."


def _pareto(audit: Audit) -> Iterable[str]:
    yield "<h2>Accuracy against speed</h2>"
    yield (
        "<p>Each mark is a method. Lower is closer to the softmax, further left is faster. A line joins the same "
        "method with different numbers of probes, more of them to the right. A mark beside its line chooses the "
        "number of probes for each query.</p>"
    )
    yield legend(panels.pareto_labels(audit))
    yield _panels(panels.pareto(audit))


def _panels(shown: Iterable[Panel]) -> str:
    inside = "".join(
        f"<figure>{one.picture}<figcaption><b>{escape(one.caption)}</b>{escape(one.aside)}</figcaption></figure>"
        for one in shown
    )
    return f'<div class="panels">{inside}</div>'


def _ratios(audit: Audit) -> Iterable[str]:
    """Figures 1 and 2 of the paper."""
    yield f"<h2>Where the error comes from, at temperature {audit.figures.temperature:g}</h2>"
    yield (
        "<p>Each dot is a cluster: the probability that the method draws from it, divided by its probability under "
        "the softmax, both averaged over the queries. Dots on the dashed line have no bias. A method that ignores "
        "cluster sizes (2ls) draws too seldom from large clusters. A method that ignores how much scores vary inside "
        "a cluster (2ls, s-2ls) draws too seldom from clusters where they vary most.</p>"
    )
    for name, shown in panels.ratios(audit).items():
        yield f"<h3>Against the {name}</h3>"
        yield _panels(shown)


def _items(audit: Audit) -> Iterable[str]:
    """Figure 3 of the paper, with a ratio instead of two probabilities, which span many powers of ten."""
    yield f"<h2>One query, item by item, at temperature {audit.figures.temperature:g}</h2>"
    yield (
        "<p>Each dot is an item, for one of the queries: its probability under the method, divided by its "
        "probability under the softmax. Dots on the dashed line are exact. A wide band means that the method "
        "favours some items only because of the cluster they are in.</p>"
    )
    yield _panels(panels.items(audit))


def _sizes(audit: Audit) -> Iterable[str]:
    """Figure 4 of the paper."""
    shown = panels.sizes(audit)
    yield f"<h2>Cluster sizes</h2><p>{shown.note}.</p>"
    yield _panels([shown])


HEADS = (
    "method",
    "KL(law ‖ softmax)",
    "KL(softmax ‖ law)",
    "TV",
    "stated TV",
    "covered",
    "exceeded",
    "ratio spread",
    "log Z error",
    "microseconds",
    "speed-up",
    "items scored",
    "memory",
)


def _tables(audit: Audit) -> Iterable[str]:
    yield "<h2>All measurements</h2>"
    note = "Means over the queries (latencies: medians), each with its 95 % interval below. Bold: recommended."
    yield f'<p class="soft">{note}</p>'
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEADS)
    for temperature in audit.temperatures:
        body = "".join(_table_row(row, row.method == audit.recommended) for row in audit.at(temperature))
        yield _table(temperature, head, body)


def _slates(audit: Audit) -> Iterable[str]:
    """Slates and exclusions, where the audit measured them."""
    if audit.rows[0].decided is None:
        return
    yield "<h2>Slates and exclusions</h2>"
    yield (
        '<p class="soft">Medians of single calls in microseconds (us). Weight error: the mean relative error of an '
        "importance weight if the softmax were taken as the propensity. With log_prob there is none.</p>"
    )
    for temperature in audit.temperatures:
        rows = [(row, row.decided.cells()) for row in audit.at(temperature) if row.decided is not None]
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("method", *rows[0][1]))
        body = "".join(_row(row, cells.values(), row.method == audit.recommended) for row, cells in rows)
        yield _table(temperature, head, body)


def _table(temperature: float, head: str, body: str) -> str:
    return (
        f'<div class="scroll"><table><caption>Temperature {temperature:g}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _table_row(row: Row, chosen: bool) -> str:
    cells = [
        "0, proven" if row.proven else _cell(row.kl),
        "0, proven" if row.proven else _cell(row.reverse_kl),
        "0, proven" if row.proven else _cell(row.total_variation),
        "–" if row.stated_error is None else short(row.stated_error),
        row.coverage.replace("-", "–"),
        "–" if row.exceeded is None else f"{row.exceeded:.1%}",
        "0, proven" if row.proven else _cell(row.ratio_spread),
        "–" if row.log_partition_error is None else _cell(row.log_partition_error),
        _cell(row.microseconds),
        f"{row.speedup:,.1f}×",
        f"{row.items_scored:,.0f}",
        f"{row.memory / 1e6:,.1f} MB",
    ]
    return _row(row, cells, chosen)


def _row(row: Row, cells: Iterable[str], chosen: bool) -> str:
    emphasis = ' class="chosen"' if chosen else ""
    return f"<tr{emphasis}><td>{escape(row.label)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _cell(measured: Measured) -> str:
    if not np.isfinite(measured.value):
        return "∞"
    return f"{short(measured.value)}<small>{short(measured.low)} – {short(measured.high)}</small>"


GLOSSARY = {
    "law": "The probability distribution that a method draws from. Inside a cluster, every method but top-k draws "
    "from the exact softmax.",
    "KL(law ‖ softmax)": "Kullback-Leibler divergence: the mean of log(law / softmax) over draws from the method, in "
    "nats. 0 means exact.",
    "KL(softmax ‖ law)": "The other direction. Infinite for a method that can never draw some items, such as top-k.",
    "TV": "Total variation: the largest error in the probability of any event. 0.03 means that no event is more than "
    "3 percentage points off.",
    "stated TV": "The error that the method itself reports with every draw (draws.error). Trust it where it is close "
    "to TV.",
    "covered": "Share of the queries whose TV is at most the error stated. After index.calibrate the share promised "
    "follows: it holds for queries like those it was calibrated with.",
    "exceeded": "Share of the queries whose TV is above twice the error stated plus 0.01.",
    "ratio spread": "Standard deviation of law / softmax over draws from the softmax: the spread of importance "
    "weights.",
    "log Z error": "Mean absolute error of the estimated log partition function, in nats.",
    "published": "The method as in its paper: it chooses a cluster before it scores any item (probes=0). For sd-2ls "
    'this needs full covariances (dispersion="full"); an index that keeps less names its rank instead.',
    "probes": "Clusters that are scanned before a draw. Adaptive: scan until the stated error is within the "
    "tolerance or the budget is spent.",
    "memory": "Bytes of the index that a draw may read.",
}


def _reading() -> Iterable[str]:
    yield "<h2>How to read this report</h2><dl>"
    for term, meaning in GLOSSARY.items():
        yield f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>"
    yield "</dl>"


PARAMETERS = {
    "softindex": "built with softindex",
    "dim": "dimensions",
    "ids": "kind of ids",
    "rounding": "distance of items from the vectors given",
    "codes": "eight-bit codes",
    "queries_are": "source of the queries",
    "audit_seed": "seed of the audit",
    "logits_rounded_by": "largest float32 error of a logit",
    "index_bytes": "bytes of the index",
    "logits_moved_by": "largest change of a logit by the storage",
}
"""Parameters whose names need more words."""


def _parameters(audit: Audit) -> Iterable[str]:
    rows = "".join(
        f"<dt>{escape(PARAMETERS.get(name, name.replace('_', ' ')))}</dt><dd>{escape(_plain(value))}</dd>"
        for name, value in audit.parameters.items()
    )
    yield f'<h2>Parameters</h2><dl class="facts">{rows}</dl>'


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return ", ".join(str(part) for part in value) if isinstance(value, list) else str(value)
