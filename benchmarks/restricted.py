"""What exclusions, allowed items and subsets cost beside a call without them and beside a scan of everything."""

import time

import numpy as np

import softindex
from benchmarks.data import glove
from benchmarks.draws import interleave
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_unbalanced

EXCLUDED, AFFECTED, SLATE = 1000, 10, 10
TEMPERATURE = 0.1


def scattered_and_near(index, rng):
    """Ids of items all over the index, and of items from ten clusters."""
    ids, offsets = index.ids, index.items.offsets
    share = EXCLUDED // AFFECTED
    clusters = rng.choice(np.flatnonzero(index.sizes > share), AFFECTED, replace=False)
    near = [rng.choice(ids[offsets[c] : offsets[c + 1]], share, replace=False) for c in clusters]
    return rng.choice(ids, EXCLUDED, replace=False), np.concatenate(near)


def exclusion_row(index, queries, rng, n, kind):
    """Microseconds of a call without exclusions, by a scan, and with both kinds of exclusions."""
    scattered, near = scattered_and_near(index, rng)
    asked = {"temperature": TEMPERATURE, "replace": n == 1, "seed": 0, "threads": 1}

    def draw(**options):
        return lambda query: index.sample(query, n, **asked, **options)

    functions = {"plain": draw(), "scattered": draw(exclude=scattered), "near": draw(exclude=near)}
    medians = interleave({**functions, "exact": draw(exclude=scattered, method="exact")}, queries)
    plain, scattered_time, near_time, exact = (medians[name] for name in ("plain", "scattered", "near", "exact"))
    return [
        kind,
        "one draw" if n == 1 else f"a slate of {n}",
        *(f"{value * 1e6:,.0f}" for value in (plain, exact, scattered_time, near_time)),
        f"{scattered_time / exact:.2f}",
        f"{near_time / plain:.2f}",
    ]


def exclusion_table(title, vectors, queries=60):
    """Exclusions of integer and string ids."""
    rng = np.random.default_rng(3)
    numbers = rng.permutation(len(vectors)) * 7
    rows = []
    for kind, ids in (("integer", numbers), ("string", np.array([f"item-{number}" for number in numbers]))):
        index = softindex.build(vectors, ids=ids, progress=True)
        chosen = vectors[rng.choice(len(vectors), queries, replace=False)]
        rows += [exclusion_row(index, chosen, rng, n, kind) for n in (1, SLATE)]
    return Table(
        f"{title}, t = {TEMPERATURE}: median microseconds of {queries} single-query calls, one thread, with "
        f"{EXCLUDED:,} excluded ids",
        ["ids", "call", "none excluded", "exact, scattered", "scattered", "in ten clusters", "scattered / exact",
         "ten clusters / none"],
        rows,
    )  # fmt: skip


def filters(index, rng):
    """Options of a call by what they leave: masks and ids, excluded and allowed."""
    ids, n = index.ids, len(index)
    half, tenth = rng.permutation(n) < n // 2, rng.permutation(n) < n // 10
    listed = rng.choice(ids, EXCLUDED, replace=False)
    return {
        "half excluded, mask": {"exclude": half},
        "half excluded, ids": {"exclude": ids[half]},
        "half allowed, mask": {"allow": half},
        "a tenth excluded, mask": {"exclude": tenth},
        "a tenth allowed, mask": {"allow": tenth},
        f"{EXCLUDED:,} allowed, ids": {"allow": listed},
        f"all but {EXCLUDED:,} allowed, mask": {"allow": ~np.isin(ids, listed)},
    }


def filter_row(name, index, queries, scan, **options):
    """Median microseconds of a draw and of the ten best, beside those of exact draws, with the filter and without."""
    asked = {"temperature": TEMPERATURE, "seed": 0, "threads": 1}
    functions = {
        "draw": lambda query: index.sample(query, **asked, **options),
        "exact": lambda query: scan.sample(query, method="exact", **asked),
        "filtered": lambda query: index.sample(query, method="exact", **asked, **options),
        "best": lambda query: index.top_k(query, 10, threads=1, **options),
    }
    medians = interleave(functions, queries)
    exact, filtered, draw, best = (medians[which] for which in ("exact", "filtered", "draw", "best"))
    microseconds = [f"{value * 1e6:,.0f}" for value in (exact, filtered, draw, best)]
    return [name, *microseconds, f"{draw / exact:.2f}", f"{draw / filtered:.2f}", f"{best / exact:.2f}"]


def filter_table(title, vectors, queries=30):
    """What filters of a call and subsets cost beside a scan of all items."""
    rng = np.random.default_rng(5)
    index = softindex.build(vectors, ids=rng.permutation(len(vectors)) * 7, progress=True)
    chosen = vectors[rng.choice(len(vectors), queries, replace=False)]
    rows = [filter_row("nothing", index, chosen, index)]
    rows += [filter_row(name, index, chosen, index, **options) for name, options in filters(index, rng).items()]
    for share in (0.99, 0.5, 0.1, 0.01):
        mask = rng.random(len(index)) < share
        start = time.perf_counter()
        part = index.subset(mask, threads=1)
        made = time.perf_counter() - start
        rows.append(filter_row(f"subset of {share:.0%}, made in {made:.1f} s", part, chosen, index))
    return Table(
        f"{title}, t = {TEMPERATURE}: median microseconds of {queries} single-query calls, one thread, with filters",
        ["filter", "exact, all items", "exact, filtered", "one draw", "top 10", "draw / exact",
         "draw / exact, filtered", "top 10 / exact"],
        rows,
    )  # fmt: skip


def run(options):
    """Exclusions and filters on synth-unbalanced and, where it can be downloaded, on GloVe."""
    sets = {f"synth-unbalanced, {options.items:,} x 100": synth_unbalanced(options.items).vectors}
    words = glove()
    if words is not None:
        sets[f"GloVe, {len(words):,} x 100, unit length"] = words
    return [table(title, vectors) for table in (exclusion_table, filter_table) for title, vectors in sets.items()]
