"""How far samplers are from the softmax of a trained model, and what that does to its gradient."""

import numpy as np
import torch

from comparing.results import illustrate
from softindex.evaluate.charts import Axis, Series, figure, plot
from softindex.evaluate.tables import Table, place
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
"""Draws of the figures in the table."""
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
    """Every sampler by its name, refreshed: the published forms of MIDX, and what is added to them one by one."""
    n = len(items)

    def midx(quantizer, residual, **given):
        return MIDXSampler(n, codewords=codewords, quantizer=quantizer, residual=residual), {"bias": bias} | given

    told = {"frequencies": frequencies, "queries": queries}
    makers = {
        "uniform": (UniformSampler(n), {}),
        "unigram": (UnigramSampler(n), {"frequencies": frequencies}),
        "sphere kernel": (SphereSampler(n), {}),
        "LSH": (LSHSampler(n), {}),
        "MIDX, product codes": midx("pq", "uniform"),
        "MIDX, residual codes": midx("rq", "uniform"),
        "— codebooks by frequency": midx("rq", "uniform", frequencies=frequencies),
        "— and in the metric of queries": midx("rq", "uniform", **told),
        "MIDX, weighted": midx("rq", "weighted", **told),
        "— with product codes": midx("pq", "weighted", **told),
        "MIDX, exact in the bucket": midx("rq", "exact", **told),
        "two-level, s-2ls": (TwoLevelSampler(n, method="s-2ls"), {"bias": bias}),
        "two-level, sd-2ls": (TwoLevelSampler(n, method="sd-2ls"), {"bias": bias}),
    }
    for sampler, given in makers.values():
        sampler.refresh(items, **given)
    return {name: sampler for name, (sampler, _) in makers.items()}


def examine(found, queries, items, bias, positives):
    """A `Diagnosis` of each sampler by its name and number of draws; only those that are plotted for several."""
    result = {}
    for name, sampler in found.items():
        for draws in DRAWS if name in PLOTTED else (SHOWN,):
            random = torch.Generator().manual_seed(0)
            result[name, draws] = diagnose(
                sampler, queries, items, bias=bias, positives=positives, draws=draws, repeats=8, generator=random
            )
    return result


def _rows(diagnoses):
    """The columns of a table and its rows, a row a sampler."""
    columns = ["sampler", "KL(softmax ‖ q)", "effective draws", "gradient bias", "gradient RMSE"]
    return columns, [
        [name, f"{one.kl:.3f}", f"{one.effective:.1%}", f"{one.gradient_bias:+.3f}", f"{one.gradient_rmse:.3f}"]
        for (name, draws), one in diagnoses.items()
        if draws == SHOWN
    ]


def _draw(diagnoses, title):
    """Bias and error of the gradient by the number of draws, a line a sampler."""
    x = np.array(DRAWS, float)
    panels = []
    for caption, value in (
        ("Bias on the target's logit", lambda one: one.gradient_bias),
        ("Error of the whole gradient", lambda one: one.gradient_rmse),
    ):
        lines = []
        for style, name in enumerate(PLOTTED):
            y = np.array([value(diagnoses[name, draws]) for draws in DRAWS])
            notes = [f"{name}, {draws} draws: {one:.4g}" for draws, one in zip(DRAWS, y, strict=True)]
            lines.append(Series(name, x, y, style, joined=True, notes=notes))
        across = Axis.around("draws", x, log=True)
        down = Axis.around("gradient", np.concatenate([one.y for one in lines]), log=False)
        panels.append((caption, plot(lines, across, down, title=title, text=f"{caption} by the number of draws.")))
    return figure(panels, list(zip(PLOTTED, range(len(PLOTTED)), strict=True)), title=title, text="A line a sampler.")


def publish(diagnoses, page):
    """Print the table of all samplers, and put it with a plot into the page."""
    columns, rows = _rows(diagnoses)
    queries = next(iter(diagnoses.values())).queries
    title = f"Samplers on {queries} queries of the validation text, gradients with {SHOWN} draws"
    found = Table(title, columns, rows).markdown()
    print(found)
    if page is not None:
        caption = "The gradient with each sampler"
        picture = illustrate(page, "samplers", _draw(diagnoses, caption), caption)
        place(page, "samplers", f"\n{found}\n\n{picture}\n")
