"""The choice of the defaults: clusters, rank and tolerance, each varied alone."""

from functools import partial

import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.draws import interleave
from benchmarks.fidelity import TEMPERATURES, distances
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_unbalanced

CLUSTERS = (0.5, 1, 2, 4, 8)
"""Times sqrt(n)."""
RANKS = (2, 4, 8, 16)
TOLERANCES = (0.01, 0.03, 0.1)


def settings():
    """The settings to try: name, build options as a function of n, and options of a draw."""
    for factor in CLUSTERS:
        yield f"clusters = {factor:g} sqrt(n)", lambda n, f=factor: {"clusters": round(f * n**0.5)}, {}
    for rank in RANKS:
        yield f"rank {rank}", lambda n, r=rank: {"dispersion": r}, {}
    for tolerance in TOLERANCES:
        yield f"tolerance {tolerance}", lambda n: {}, {"tolerance": tolerance}


def rows(name, vectors, queries=200):
    """One row per setting: KL and microseconds, of one draw and of a hundred for one query, at each temperature."""
    picked = vectors[np.random.default_rng(1).choice(len(vectors), size=queries, replace=False)]
    built = {}
    for label, options, draw_options in settings():
        wanted = options(len(vectors))
        key = tuple(wanted.items())
        if key not in built:
            built.clear()
            built[key] = softindex.build(vectors, progress=True, **wanted)
        index, row = built[key], [name, label]
        for t in TEMPERATURES:
            kl = distances(index, picked, t, **draw_options)[0].mean()
            draws = {n: partial(index.sample, n=n, temperature=t, threads=1, **draw_options) for n in (1, 100)}
            seconds = interleave(draws, picked)
            row.append(f"{kl:.1e} / {seconds[1] * 1e6:,.0f} / {seconds[100] * 1e6:,.0f}")
        yield row


def run(options):
    """GloVe, and synth-unbalanced with a fifth of the items."""
    sets = {
        "GloVe": glove,
        f"synth-unbalanced, {options.items // 5:,}": lambda: synth_unbalanced(options.items // 5).vectors,
    }
    table = []
    for name, make in sets.items():
        vectors = make()
        if vectors is not None:
            table.extend(rows(name, vectors))
    title = (
        "Mean KL(law || softmax) / microseconds of one draw / of a hundred draws for one query "
        "(medians of 200 queries, one thread), of the default method"
    )
    return [Table(title, ["set", "setting", *(f"t = {t}" for t in TEMPERATURES)], table)]
