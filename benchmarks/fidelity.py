"""How close the default is to the softmax, how reliable its stated error is, and what certified draws cost."""

from pathlib import Path

import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.draws import interleave
from benchmarks.peers import NumpyExact
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_balanced, synth_unbalanced
from softindex.evaluate.distances import between

TEMPERATURES = (0.05, 0.1, 0.2)
PAPER = {"clusters": 1024}
"""The paper's number of clusters, for its synthetic sets; all others have the default, sqrt(n)."""
QUERIES = 300


def distances(index, queries, temperature, **options):
    """KL(law || softmax), total variation and stated error (b,)."""
    settings = {"temperature": temperature, "threads": 1}
    law, error, _ = index.cluster_log_masses(queries, method="sd-2ls", **settings, **options)
    found = between(law, index.cluster_log_masses(queries, method="exact", **settings)[0])
    return found.kl, found.total_variation, error


def made(kind, rng):
    """Sets of other kinds: few and many dimensions, lengths of all sizes, heavy tails.  No law was tuned on them."""
    if kind == "8 dimensions":
        return mixture(rng, 200_000, 8, 300, 0.3)
    if kind == "768 dimensions":
        return mixture(rng, 60_000, 768, 200, 0.03)
    if kind == "lengths of all sizes":
        vectors = mixture(rng, 200_000, 64, 500, 0.1)
        return (vectors * np.exp(0.4 * rng.standard_normal((len(vectors), 1)))).astype(np.float32)
    vectors = rng.standard_t(3, size=(200_000, 48)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


MADE = ("8 dimensions", "768 dimensions", "lengths of all sizes", "heavy tails, unit length")


def mixture(rng, n, d, groups, noise):
    """Groups of very different size around means on the unit sphere."""
    means = rng.standard_normal((groups, d))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    weights = np.exp(rng.standard_normal(groups))
    group = rng.choice(groups, size=n, p=weights / weights.sum())
    return (means[group] + noise * rng.standard_normal((n, d))).astype(np.float32)


def sets(options):
    """Name, maker and build options of every set."""
    size = f"{options.items:,} x 100"
    yield f"synth-balanced, {size}", lambda: synth_balanced(options.items).vectors, PAPER
    yield f"synth-unbalanced, {size}", lambda: synth_unbalanced(options.items).vectors, PAPER
    yield "GloVe, 341,479 x 100, unit length", glove, {}
    for kind in MADE:
        yield kind, lambda kind=kind: made(kind, np.random.default_rng(5)), {}
    for path in options.vectors:
        yield Path(path).stem, lambda path=path: np.load(path), {}


def hold_out(vectors):
    """Items, queries held out of them, and some of the items as queries."""
    rows = np.random.default_rng(1).permutation(len(vectors))[: 2 * QUERIES]
    return np.delete(vectors, rows[:QUERIES], axis=0), vectors[rows[:QUERIES]], vectors[rows[QUERIES:]]


def stated_row(held_out, items):
    """Measured and stated errors, each (total variation, stated), of held-out queries and of items as queries."""
    (tv, stated), (items_tv, items_stated) = held_out, items
    return [
        f"{tv.mean():.4f}",
        f"{stated.mean():.4f}",
        f"{(tv > stated).mean():.1%}",
        f"{(tv > 0.01 + 2 * stated).mean():.1%}",
        f"{(items_tv > 0.01 + 2 * items_stated).mean():.1%}",
        f"{(tv - stated).max():.3f}",
    ]


def time_draws(index, coded, exact, queries, t):
    """Median seconds of a draw by each contestant."""

    def ours(which, n=1, **named):
        return lambda query: which.sample(query, n, temperature=t, threads=1, **named)

    functions = {
        "NumPy": lambda query: exact.draw(query, t),
        "default": ours(index),
        "hundred": ours(index, 100),
        "certified": ours(index, method="certified"),
        "coded": ours(coded, method="certified"),
    }
    return interleave(functions, queries[:100])


def measure(name, vectors, **options):
    """Rows of three tables for one set: error and cost of the default, its stated error, and certified draws."""
    vectors, queries, items = hold_out(vectors)
    index = softindex.build(vectors, progress=True, **options)
    coded = softindex.build(vectors, codes=True, progress=True, **options)
    exact = NumpyExact(vectors)
    close, stated_rows, certified = [], [], []
    for t in TEMPERATURES:
        kl, *errors = distances(index, queries, t)
        items_kl, *items_errors = distances(index, items, t)
        unprobed = distances(index, queries, t, probes=0)[0]
        seconds = time_draws(index, coded, exact, queries, t)
        ratio = {name: seconds["NumPy"] / value for name, value in seconds.items()}
        scored = index.sample(queries, temperature=t, seed=1).items_scored.mean()
        certified_scored = index.sample(queries[:100], temperature=t, method="certified").items_scored.mean()
        close.append(
            [
                name,
                str(t),
                *(f"{values.mean():.1e}" for values in (unprobed, kl, items_kl)),
                f"{seconds['default'] * 1e6:,.0f}",
                f"{ratio['default']:,.0f}x",
                f"{scored / len(vectors):.1%}",
                f"{seconds['hundred'] / seconds['default']:.1f}x",
            ]
        )
        stated_rows.append([name, str(t), *stated_row(errors, items_errors)])
        certified.append(
            [
                name,
                str(t),
                *(f"{seconds[which] * 1e6:,.0f}" for which in ("certified", "coded")),
                *(f"{ratio[which]:,.1f}x" for which in ("certified", "coded")),
                f"{certified_scored / len(vectors):.1%}",
            ]
        )
    return close, stated_rows, certified


def run(options):
    """The three tables over all sets."""
    close, stated_rows, certified = [], [], []
    for name, make, built in sets(options):
        vectors = make()
        if vectors is None:
            continue
        for rows, more in zip((close, stated_rows, certified), measure(name, vectors, **built), strict=True):
            rows.extend(more)
        del vectors
    count = f"{QUERIES} queries held out of the items"
    return [
        Table(
            f"The default (sd-2ls, adaptive probes): mean KL(law || softmax) over {count}, and that of sd-2ls "
            "without probes (rank 8; full covariances in 8 dimensions); microseconds per draw, medians of 100 "
            "interleaved single-query calls on one thread, against an exact draw in NumPy",
            [
                "set",
                "t",
                "KL, no probes",
                "KL, default",
                "KL, items as queries",
                "us",
                "against NumPy",
                "scored",
                "100 draws",
            ],
            close,
        ),
        Table(
            f"Its stated error against the measured total variation, {count}",
            [
                "set",
                "t",
                "measured",
                "stated",
                "measured > stated",
                "> 0.01 + 2 x stated",
                "the same, items as queries",
                "largest excess",
            ],
            stated_rows,
        ),
        Table(
            "Certified (provably exact) draws: microseconds, medians as above",
            ["set", "t", "us", "us with codes", "against NumPy", "with codes", "scored"],
            certified,
        ),
    ]
