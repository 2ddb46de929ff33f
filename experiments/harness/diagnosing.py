"""Distance between samplers and the softmax of a trained model, and the error of its gradient."""

import numpy as np
import torch

from benchmarks.tables import Table, place
from experiments.harness.results import illustrate
from experiments.harness.runs import Run
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
    "two-level, sd-2ls",
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


def add_option(parser):
    """The option that diagnoses samplers."""
    parser.add_argument(
        "--diagnose",
        action="store_true",
        help="diagnose all samplers on a trained model: of --methods, if it is one, or of the full softmax",
    )


def publish(task, options):
    """Print how far every sampler is from the softmax of a trained model, and write it with a plot into the page.

    The model is that of --methods, if it is one, or of the full softmax; the marks are `<task>-samplers`.
    """
    method = options.methods if options.methods in task.methods else "full"
    diagnoses = diagnose_trained(task, options.out, method)
    columns, rows = _rows(diagnoses)
    queries = next(iter(diagnoses.values())).queries
    title = (
        f"{task.title}: samplers on {queries} validation queries, gradients with {SHOWN} draws, model trained with "
        f"{task.title_of(method)}"
    )
    table = Table(title, columns, rows).markdown()
    print(table)
    if options.page is not None:
        section, caption = options.section or f"{task.name}-samplers", "The gradient with each sampler"
        picture = illustrate(options.page, section, _draw(diagnoses, caption), caption)
        place(options.page, section, f"\n{table}\n\n{picture}\n")


@torch.no_grad()
def diagnose_trained(task, folder, method, count=256):
    """Diagnose every sampler on validation queries, with the best weights that a method has trained."""
    trainer, at = Run(task, method, 0, folder).resume()
    if not at.best:
        raise SystemExit(f"{folder} has no finished epoch of {method}; run with --methods {method} first.")
    trainer.model.load_state_dict(at.best)
    seen, unseen = (trainer.queries(part, count * 4) for part in (0, 1))
    chosen = torch.randperm(len(unseen[0]), generator=torch.Generator().manual_seed(0))[:count]
    queries, positives = (part[chosen] for part in unseen)
    items, bias = trainer.layer()
    refreshed = samplers(items, trainer.objective.counts, seen[0], bias, trainer.codewords)
    return diagnose_all(refreshed, queries, items, bias, positives)
