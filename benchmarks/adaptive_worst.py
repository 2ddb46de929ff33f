"""AdaptiveSoftmax where estimates cannot win: the time of "pac" relative to a plain product and softmax."""

import time
from functools import partial

import numpy as np

from benchmarks.tables import Table
from softindex import AdaptiveSoftmax
from softindex.evaluate.timing import take_turns

SHAPES = (
    (4, 300_000), (10, 100_000), (30, 100_000), (100, 10_000), (100, 100_000), (300, 4096), (1000, 2000), (2000, 4096),
    (5000, 1024), (30_000, 1024), (50_000, 64),
)  # fmt: skip


def normal(n, d, rng):
    """Rows of about unit length, and a query that is noise."""
    return rng.standard_normal((n, d), dtype=np.float32) / np.float32(np.sqrt(d)), rng.standard_normal(
        d, dtype=np.float32
    )


def equal_rows(n, d, rng):
    """All classes tie."""
    weights, query = normal(1, d, rng)
    return np.repeat(weights, n, axis=0), query


def nearly_equal_rows(n, d, rng):
    """All classes differ by less than float32 rounds."""
    weights, query = normal(n, d, rng)
    return weights[:1] + np.float32(1e-6) * weights, query


def increasing(n, d, rng):
    """Every class is better than those before it."""
    weights, query = normal(n, d, rng)
    return np.ascontiguousarray(weights[np.argsort(weights @ query)]), query


def heavy_column(n, d, rng):
    """One column decides."""
    weights, query = normal(n, d, rng)
    weights[:, 0] += np.linspace(0, 1, n, dtype=np.float32)
    return weights, query


def heavy_tails(n, d, rng):
    """Numbers of Student's t of two degrees."""
    return (rng.standard_t(2, (n, d)) / np.sqrt(d)).astype(np.float32), rng.standard_normal(d, dtype=np.float32)


def shared(n, d, rng):
    """All rows have a component in common."""
    weights, query = normal(n, d, rng)
    common = rng.standard_normal(d, dtype=np.float32)
    return np.float32(0.1) * weights + 3 * common / np.linalg.norm(common), query


def integers(n, d, rng):
    """Small integers: many classes tie."""
    return rng.integers(-2, 3, (n, d)).astype(np.float32), rng.integers(-1, 2, d).astype(np.float32)


def sparse_query(n, d, rng):
    """Of the query, 22 % is not zero."""
    weights, query = normal(n, d, rng)
    return weights, query * (rng.random(d) < 0.22)


def leading(n, d, rng, ahead=12):
    """One class is ahead of the others."""
    weights, query = normal(n, d, rng)
    weights[3] += ahead * query / (query @ query)
    return weights, query


def long_query(n, d, rng):
    """Logits of hundreds, which float32 rounds."""
    weights, query = normal(n, d, rng)
    return weights, 3000 * query


FAMILIES = {
    "noise": normal,
    "equal rows": equal_rows,
    "nearly equal rows": nearly_equal_rows,
    "increasing": increasing,
    "one heavy column": heavy_column,
    "heavy tails": heavy_tails,
    "shared component": shared,
    "integers": integers,
    "sparse query": sparse_query,
    "12 ahead": leading,
    "30 ahead": partial(leading, ahead=30),
    "80 ahead": partial(leading, ahead=80),
    "long query": long_query,
}


def softmax(weights, query):
    """What a user writes."""
    logits = weights @ query
    logits -= logits.max()
    np.exp(logits, out=logits)
    logits /= logits.sum()
    return int(logits.argmax())


def ratio(weights, query, repeats):
    """Median processor time of "pac" over that of NumPy, in turns, on one thread; and the guarantee of the answer."""
    soft = AdaptiveSoftmax(weights)
    ask = partial(soft.top_k, k=1, temperature=1.0, guarantee="pac", threads=1)
    functions = {"NumPy": partial(softmax, weights), "pac": ask}
    take_turns(functions, [query])
    seconds = take_turns(functions, [query] * repeats, stretch=3, clock=time.thread_time)
    return float(np.median(seconds["pac"]) / np.median(seconds["NumPy"])), ask(query).guarantee


def worst(shapes=SHAPES, repeats=30):
    """One row per family, one column per shape; answers that were estimated after all are in brackets."""
    rows = []
    for name, make in FAMILIES.items():
        cells = []
        for n, d in shapes:
            weights, query = make(n, d, np.random.default_rng([n, d]))
            found, guarantee = ratio(weights, np.ascontiguousarray(query, np.float32), repeats)
            cells.append(f"{found:.2f}" if guarantee == "exact" else f"({found:.2f})")
        rows.append([name, *cells])
    return rows


def run(options):
    """The times of pac where estimates cannot win."""
    return [
        Table(
            "Where pac cannot win: its processor time relative to a plain product and softmax in NumPy (medians, one "
            "thread, in turns; in brackets: estimated after all)",
            ["data", *(f"{n:,} x {d:,}" for n, d in SHAPES)],
            worst(),
        )
    ]
