"""What exclusions cost beside a call without them and beside a scan of everything."""

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


def run(options):
    """Exclusions on synth-unbalanced and, where it can be downloaded, on GloVe."""
    tables = [exclusion_table(f"synth-unbalanced, {options.items:,} x 100", synth_unbalanced(options.items).vectors)]
    words = glove()
    if words is not None:
        tables.append(exclusion_table(f"GloVe, {len(words):,} x 100, unit length", words))
    return tables
