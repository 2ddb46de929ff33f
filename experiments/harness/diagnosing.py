"""Distance between samplers and the softmax of a trained model, and the error of its gradient."""

import numpy as np
import torch

from benchmarks.tables import Table, place
from experiments.harness.results import illustrate
from softindex.evaluate.charts import Axis, Series, figure, plot
from softindex.train import (
    LSHSampler,
    MIDXSampler,
    SphereSampler,
    TwoLevelSampler,
    UniformSampler,
    UnigramSampler,
    diagnose,
)

DRAWS = (5, 20, 100, 500)
SHOWN = 20
"""Number of draws used in the table."""
PLOTTED = (
    "uniform",
    "unigram",
    "sphere kernel",
    "LSH",
    "MIDX, product codes",
    "MIDX, residual codes",
    "MIDX, weighted",
)


def samplers(items, frequencies, queries, bias, codewords):
    """Refreshed samplers by name: MIDX as published, then each extension of it."""
    n = len(items)

    def midx(quantizer, residual, drawing="independent", **data):
        sampler = MIDXSampler(n, codewords=codewords, quantizer=quantizer, residual=residual, drawing=drawing)
        return sampler, {"bias": bias} | data

    both = {"frequencies": frequencies, "queries": queries}
    makers = {
        "uniform": (UniformSampler(n), {}),
        "unigram": (UnigramSampler(n), {"frequencies": frequencies}),
        "sphere kernel": (SphereSampler(n), {}),
        "LSH": (LSHSampler(n), {}),
        "MIDX, product codes": midx("pq", "uniform"),
        "MIDX, residual codes": midx("rq", "uniform"),
        "— codebooks by frequency": midx("rq", "uniform", frequencies=frequencies),
        "— and in the metric of queries": midx("rq", "uniform", **both),
        "MIDX, weighted": midx("rq", "weighted", **both),
        "— with product codes": midx("pq", "weighted", **both),
        "MIDX, weighted, systematic draws": midx("rq", "weighted", "systematic", **both),
        "MIDX, exact in the cluster": midx("rq", "exact", **both),
        "two-level, s-2ls": (TwoLevelSampler(n, method="s-2ls"), {"bias": bias}),
        "two-level, sd-2ls": (TwoLevelSampler(n, method="sd-2ls"), {"bias": bias}),
        "the softmax itself": midx("rq", "oracle", **both),
        "the softmax itself, systematic draws": midx("rq", "oracle", "systematic", **both),
    }
    for sampler, data in makers.values():
        sampler.refresh(items, **data)
    return {name: sampler for name, (sampler, _) in makers.items()}


def diagnose_all(samplers, queries, items, bias, positives):
    """Each sampler's `Diagnosis` by name and number of draws; only the plotted ones have several numbers."""
    result = {}
    for name, sampler in samplers.items():
        for draws in DRAWS if name in PLOTTED else (SHOWN,):
            random = torch.Generator().manual_seed(0)
            result[name, draws] = diagnose(
                sampler, queries, items, bias=bias, positives=positives, draws=draws, repeats=8, generator=random
            )
    return result


def _rows(diagnoses):
    """Columns and rows of the table, one row per sampler."""
    columns = ["sampler", "KL(softmax ‖ q)", "effective draws", "gradient bias", "gradient RMSE"]
    return columns, [
        [name, f"{one.kl:z.3f}", f"{one.effective:.1%}", f"{one.gradient_bias:+z.3f}", f"{one.gradient_rmse:.3f}"]
        for (name, draws), one in diagnoses.items()
        if draws == SHOWN
    ]


def _draw(diagnoses, title):
    """Bias and error of the gradient by the number of draws, one line per sampler."""
    x = np.array(DRAWS, float)
    panels = []
    for caption, value in (
        ("Bias on the target's logit", lambda one: one.gradient_bias),
        ("Error of the entire gradient", lambda one: one.gradient_rmse),
    ):
        lines = []
        for style, name in enumerate(PLOTTED):
            y = np.array([value(diagnoses[name, draws]) for draws in DRAWS])
            notes = [f"{name}, {draws} draws: {one:.4g}" for draws, one in zip(DRAWS, y, strict=True)]
            lines.append(Series(name, x, y, style, joined=True, notes=notes))
        across = Axis.around("draws", x, log=True)
        down = Axis.around("gradient", np.concatenate([one.y for one in lines]), log=False)
        panels.append((caption, plot(lines, across, down, title=title, text=f"{caption} by the number of draws.")))
    return figure(
        panels, list(zip(PLOTTED, range(len(PLOTTED)), strict=True)), title=title, text="One line per sampler."
    )


def publish(diagnoses, page, trained_by):
    """Print the table of all samplers, and write it with a plot into the page."""
    columns, rows = _rows(diagnoses)
    queries = next(iter(diagnoses.values())).queries
    title = f"Samplers on {queries} queries of the validation text, gradients with {SHOWN} draws, {trained_by}"
    table = Table(title, columns, rows).markdown()
    print(table)
    if page is not None:
        caption = "The gradient with each sampler"
        picture = illustrate(page, "samplers", _draw(diagnoses, caption), caption)
        place(page, "samplers", f"\n{table}\n\n{picture}\n")
