"""How close the default law is to the softmax, how honest its stated error is, and what both cost; certified beside."""

from pathlib import Path

import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.draws import interleave
from softindex.evaluate.contestants import Contestant, law_masses
from softindex.evaluate.datasets import synth_balanced, synth_unbalanced
from softindex.evaluate.distances import between
from softindex.evaluate.peers import NumpyExact
from softindex.evaluate.tables import Table

TEMPERATURES = (0.05, 0.1, 0.2)
PAPER = {"clusters": 1024}
"""As many clusters as the paper takes for its synthetic sets; all others have the default, sqrt(n)."""
QUERIES = 300


def distances(index, queries, temperature, **options):
    """KL(law || softmax), total variation and stated error (b,)."""
    law, error = law_masses(index, queries, Contestant("sd-2ls", **options), temperature, 1)
    found = between(law, law_masses(index, queries, Contestant("exact"), temperature, 1)[0])
    return found.kl, found.total_variation, error


def made(kind, rng):
    """Sets that nothing was tuned on: few and many dimensions, lengths of all sizes, heavy tails."""
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


def measure(name, vectors, **options):
    """Rows of three tables for one set: closeness and cost of the default, its honesty, certified draws."""
    index = softindex.build(vectors, progress=True, **options)
    coded = softindex.build(vectors, codes=True, progress=True, **options)
    rng = np.random.default_rng(1)
    queries = vectors[rng.choice(len(vectors), size=QUERIES, replace=False)]
    exact = NumpyExact(vectors)
    close, honest, certain = [], [], []
    for t in TEMPERATURES:
        kl, tv, stated = distances(index, queries, t)
        published = distances(index, queries, t, probes=0)[0]

        def ours(which, n=1, t=t, **named):
            return lambda query: which.sample(query, n, temperature=t, threads=1, **named)

        contestants = {
            "NumPy": lambda query, t=t: exact.draw(query, t),
            "default": ours(index),
            "hundred": ours(index, 100),
            "certified": ours(index, method="certified"),
            "coded": ours(coded, method="certified"),
        }
        seconds = interleave(contestants, queries[:100])
        ratio = {name: seconds["NumPy"] / value for name, value in seconds.items()}
        scored = index.sample(queries, temperature=t, seed=1).items_scored.mean()
        looked_at = index.sample(queries[:100], temperature=t, method="certified").items_scored.mean()
        close.append(
            [
                name,
                str(t),
                f"{published.mean():.1e}",
                f"{kl.mean():.1e}",
                f"{seconds['default'] * 1e6:,.0f}",
                f"{ratio['default']:,.0f}x",
                f"{scored / len(vectors):.1%}",
                f"{seconds['hundred'] / seconds['default']:.1f}x",
            ]
        )
        honest.append(
            [
                name,
                str(t),
                f"{tv.mean():.4f}",
                f"{stated.mean():.4f}",
                f"{(tv > stated).mean():.1%}",
                f"{(tv > 0.01 + 2 * stated).mean():.1%}",
                f"{(tv - stated).max():.3f}",
            ]
        )
        certain.append(
            [
                name,
                str(t),
                *(f"{seconds[which] * 1e6:,.0f}" for which in ("certified", "coded")),
                *(f"{ratio[which]:,.1f}x" for which in ("certified", "coded")),
                f"{looked_at / len(vectors):.1%}",
            ]
        )
    return close, honest, certain


def run(options):
    """The three tables over all sets."""
    close, honest, certain = [], [], []
    for name, make, built in sets(options):
        vectors = make()
        if vectors is None:
            continue
        for rows, more in zip((close, honest, certain), measure(name, vectors, **built), strict=True):
            rows.extend(more)
        del vectors
    count = f"{QUERIES} queries drawn from the items"
    return [
        Table(
            f"The default (sd-2ls, adaptive probes): mean KL(law || softmax) over {count}; microseconds a draw, "
            "medians of 100 interleaved single-query calls on one thread, against an exact draw in NumPy",
            ["set", "t", "KL, published sd-2ls", "KL, default", "us", "against NumPy", "scored", "100 draws"],
            close,
        ),
        Table(
            f"Its stated error against the measured total variation, {count}",
            ["set", "t", "measured", "stated", "measured > stated", "> 0.01 + 2 x stated", "largest excess"],
            honest,
        ),
        Table(
            "Certified (provably exact) draws: microseconds, medians as above",
            ["set", "t", "us", "us with codes", "against NumPy", "with codes", "scored"],
            certain,
        ),
    ]
