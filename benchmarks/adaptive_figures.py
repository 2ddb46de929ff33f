"""The figures of AdaptiveSoftmax: gain against d and the gap, the variance of estimates, and what queries cost."""

import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.adaptive import EPSILON, best_of, plain, regular, toy
from benchmarks.adaptive_gaps import SPREAD, query_of
from benchmarks.tables import Table
from softindex import AdaptiveSoftmax
from softindex.adaptive.columns import transpose
from softindex.adaptive.rows import Rows
from softindex.evaluate.charts import Axis, Series, figure, plot
from softindex.evaluate.timing import take_turns
from softindex.kernels import NativePac

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
LENGTHS = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
GAPS = (0, 8, 12, 16, 20, 24)
COUNTS = (16, 32, 64, 128, 256, 512, 1024)
SETS = {"toy": (toy, 0), "regular": (regular, 1)}


def against_length():
    """For each published set and d: how many times fewer multiplications, and how many times as fast as NumPy."""
    found = {}
    for name, (make, _) in SETS.items():
        for d in LENGTHS:
            weights, draw = make(d)
            soft, rng = AdaptiveSoftmax(weights), np.random.default_rng(1)
            queries = [draw(rng) * np.float32(1 + 1e-3 * rng.random()) for _ in range(40)]
            ways = {"NumPy": plain(weights), "pac": partial(best_of, soft, guarantee="pac")}
            take_turns(ways, queries[:2])
            taken = take_turns(ways, queries, stretch=5, clock=time.thread_time)
            spent = np.mean([best_of(soft, query, guarantee="pac").multiplications for query in queries])
            found[name, d] = weights.size / spent, float(np.median(taken["NumPy"]) / np.median(taken["pac"]))
    return found


def against_gap(n=30_000, d=1024):
    """For each guarantee and gap: how many times as fast as NumPy; normal rows with one planted class."""
    weights = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32) / np.float32(np.sqrt(d))
    soft, rng, found = AdaptiveSoftmax(weights), np.random.default_rng(1), {}
    for gap in GAPS:
        queries = [query_of(weights, gap, SPREAD, rng) for _ in range(72)]
        soft.calibrate(np.stack(queries[12:]), confidence=0.95, k=1, epsilon=EPSILON, threads=1)
        queries = queries[:12]
        ways = {"NumPy": plain(weights)}
        for kind in ("deterministic", "calibrated"):
            ways[kind] = partial(best_of, soft, guarantee=kind)
        take_turns(ways, queries[:2])
        taken = take_turns(ways, queries, stretch=3, clock=time.thread_time)
        for kind in ("deterministic", "calibrated"):
            found[kind, gap] = float(np.median(taken["NumPy"] / taken[kind]))
    return found


def variances(n=100, d=10_000, repeats=200):
    """For the set "regular" and each number of columns: mean squared error of estimates, and the variance stated."""
    weights, draw = regular(d)
    query = draw(np.random.default_rng(0)).astype(np.float32)
    arrays = transpose(Rows(weights)).arrays()
    layer = NativePac(weights, arrays, max(1, int(np.count_nonzero(arrays["scales"]))))
    truth, found = weights.astype(np.float64) @ query.astype(np.float64), {}
    for count in COUNTS:
        squares, stated = [], []
        for seed in range(repeats):
            which, estimates = np.empty(count, np.int64), np.empty((3, n))
            layer.look(query, seed, which, estimates)
            squares.append((estimates[0] - truth) ** 2)
            stated.append(estimates[1])
        found[count] = float(np.mean(squares)), float(np.mean(stated))
    return found


def costs(d=100_000, queries=400):
    """(400,) multiplications per row of each query of the set "regular"."""
    weights, draw = regular(d)
    soft, rng = AdaptiveSoftmax(weights), np.random.default_rng(2)
    made = [draw(rng) * np.float32(1 + 1e-3 * rng.random()) for _ in range(queries)]
    return np.array([best_of(soft, query, guarantee="pac").multiplications for query in made]) / len(weights)


def draw_gains(by_length, by_gap):
    """Gain against d and against the gap."""
    lengths, gaps = np.array(LENGTHS, float), np.array(GAPS, float)
    lines, labels = [], []
    for name, (_, style) in SETS.items():
        for place, what in enumerate(("multiplications", "clock")):
            values = np.array([by_length[name, d][place] for d in LENGTHS])
            lines.append(Series(f"{name}, {what}", lengths, values, style + 2 * place, joined=True))
            labels.append((f"pac, {name}, {what}", style + 2 * place))
    for style, kind in ((4, "deterministic"), (5, "calibrated")):
        labels.append((kind, style))
    curves = [
        Series(kind, gaps, np.array([by_gap[kind, gap] for gap in GAPS]), style, joined=True)
        for style, kind in ((4, "deterministic"), (5, "calibrated"))
    ]
    y = Axis.around("times", np.concatenate([line.y for line in lines]), log=True)
    times = Axis("times as fast as NumPy", 0.0, 1.1 * max(float(curve.y.max()) for curve in curves))
    panels = [
        (
            "gain against d, 100 rows",
            plot(lines, Axis.around("d", lengths, log=True), y, title="Gain against d", text="grows with d", rule=1.0),
        ),
        (
            "gain against the gap, 30,000 x 1,024",
            plot(
                curves,
                Axis.around("logit of the planted class", gaps),
                times,
                title="Gain against the gap",
                text="grows with the gap",
                rule=1.0,
            ),
        ),
    ]
    (FIGURES / "adaptive-gains.svg").write_text(
        figure(panels, labels, title="Gains of AdaptiveSoftmax", text="see the table")
    )


def draw_estimates(found, each):
    """The variance of estimates against the number of columns, and the distribution of what queries cost."""
    counts = np.array(COUNTS, float)
    errors, stated = (np.array([found[count][place] for count in COUNTS]) for place in (0, 1))
    lines = [Series("error", counts, errors, 0, joined=True), Series("stated", counts, stated, 1, joined=True)]
    ordered, shares = np.sort(each), np.arange(1, len(each) + 1) / len(each)
    curve = Series("queries", ordered, shares, 2, small=True)
    panels = [
        (
            "variance of an estimate, regular, d = 10,000",
            plot(
                lines,
                Axis.around("columns", counts, log=True),
                Axis.around("variance", np.concatenate([errors, stated]), log=True),
                title="Variance of estimates",
                text="falls as one over the number of columns",
            ),
        ),
        (
            "multiplications per row, regular, d = 100,000",
            plot(
                [curve],
                Axis.around("multiplications per row, at most", ordered, log=True),
                Axis("share of queries", 0.0, 1.0),
                title="Distribution of costs",
                text="cumulative",
            ),
        ),
    ]
    labels = [("mean squared error", 0), ("variance stated", 1), ("queries", 2)]
    (FIGURES / "adaptive-estimates.svg").write_text(
        figure(panels, labels, title="Estimates of AdaptiveSoftmax", text="see the table")
    )


def run(options):
    """Four figures, and the numbers of the first."""
    by_length, by_gap = against_length(), against_gap()
    FIGURES.mkdir(exist_ok=True)
    draw_gains(by_length, by_gap)
    draw_estimates(variances(), costs())
    rows = [[name, *(f"{by_length[name, d][0]:.3g}x, {by_length[name, d][1]:.2f}x" for d in LENGTHS)] for name in SETS]
    return [
        Table(
            "pac by the length of the rows, 100 of them: how many times fewer multiplications, and how many times as "
            "fast as NumPy (processor time, medians, one thread, in turns)",
            ["set", *(f"d = {d:,}" for d in LENGTHS)],
            rows,
        )
    ]
