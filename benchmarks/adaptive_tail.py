"""log Z from the clusters of an index, against screens of all rows and against a plain product."""

import math
import time
from functools import partial

import numpy as np

from benchmarks.adaptive import EPSILON, best_of, isotropic, plain, words
from benchmarks.tables import Table
from softindex import AdaptiveSoftmax, build
from softindex.adaptive import IndexedSoftmax
from softindex.evaluate.timing import take_turns

N, D, CENTRES = 30_000, 1024, 200
CALIBRATED, QUERIES, TURN = 100, 40, 1
CONFIDENCE = 0.95
KINDS = ("deterministic", "calibrated")


def clustered(noise, lean, seed=0):
    """Rows around centres, of about unit length; a query is noise and leans to one of the rows."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((CENTRES, D))[rng.integers(CENTRES, size=N)] + noise * rng.standard_normal((N, D))
    return leaning((rows / np.sqrt((1 + noise**2) * D)).astype(np.float32), lean)


def leaning(rows, lean):
    """The rows, and a maker of queries that are noise and lean to one of them."""
    return (
        rows,
        lambda rng: (
            np.float32(lean) * rows[rng.integers(len(rows))] + rng.standard_normal(rows.shape[1], dtype=np.float32)
        ),
    )


def sets():
    """Name, and rows with a maker of queries."""
    shape = f"{N:,} x {D:,}"
    for noise, kind in ((0.3, "tight clusters"), (0.7, "loose clusters")):
        for lean in (16, 12, 8, 0):
            yield f"{kind}, {shape}, lean {lean}", clustered(noise, lean)
    found = words()
    if found is not None:
        yield "word vectors, 341,479 x 100", found
    for lean in (16, 8, 0):
        yield f"no clusters, {shape}, lean {lean}", leaning(isotropic(N, D)[0], lean)


def contestants(rows, queries):
    """What answers a query, by name; everything that is calibrated is calibrated with these queries."""
    index = build(rows, seed=0).calibrate(queries, temperatures=[1.0], confidence=CONFIDENCE)
    soft, indexed = AdaptiveSoftmax(rows), IndexedSoftmax(index)
    soft.calibrate(queries, confidence=CONFIDENCE)
    return {
        "NumPy": plain(rows),
        **{f"AdaptiveSoftmax, {kind}": partial(best_of, soft, guarantee=kind) for kind in KINDS},
        **{f"IndexedSoftmax, {kind}": partial(best_of, indexed, guarantee=kind) for kind in KINDS},
    }


def truth(rows, query):
    """The best row, how far its logit is ahead, and log Z, in float64."""
    logits = rows.astype(np.float64) @ query.astype(np.float64)
    order = np.argpartition(logits, -2)[-2:]
    second, first = np.sort(logits[order])
    return int(logits.argmax()), first - second, np.logaddexp.reduce(logits)


def measure(name, rows, make):
    """One row per contestant."""
    rng = np.random.default_rng(1)
    functions = contestants(rows, np.stack([make(rng) for _ in range(CALIBRATED)]))
    queries = [make(rng) for _ in range(QUERIES)]
    take_turns(functions, queries[:2])
    taken = take_turns(functions, queries, stretch=TURN, clock=time.process_time)
    known = [truth(rows, query) for query in queries]
    gap, plainly = np.median([each[1] for each in known]), taken["NumPy"]
    named, result = f"{name}, gap {gap:.2f}", []
    for who, function in functions.items():
        row = [named, who, f"{np.median(taken[who]) * 1e3:.2f}", f"{np.median(plainly / taken[who]):.2f}x"]
        if who == "NumPy":
            result.append([*row, "", "", "", ""])
            continue
        found = [function(query) for query in queries]
        right = np.mean([one.ids[0] == best for one, (best, _, _) in zip(found, known, strict=True)])
        away = [one.log_partition.value - log_z for one, (_, _, log_z) in zip(found, known, strict=True)]
        within = np.mean([abs(math.expm1(-each)) <= EPSILON for each in away])
        present = taken["AdaptiveSoftmax, deterministic"]
        given = [one.guarantee for one in found]
        labels = ", ".join(f"{label} {given.count(label) / len(given):.0%}" for label in sorted(set(given)))
        result.append([*row, f"{np.median(taken[who] / present):.2f}", f"{right:.0%}", f"{within:.0%}", labels])
    return result


def run(options):
    """One table over all sets."""
    return [
        Table(
            f"The best class and its probability within {EPSILON:.0%}, on one thread: milliseconds of processor time "
            f"(medians of {QUERIES} queries, in turns), times as fast as NumPy, time relative to AdaptiveSoftmax with "
            "the guarantee deterministic (median ratios), how often the best class was right, how often Z was within "
            f"{EPSILON:.0%}, and the guarantees of the answers. The gap is the median distance of the two best logits",
            ["set", "how", "ms", "against NumPy", "time", "right", "Z within", "given"],
            [row for name, (rows, make) in sets() for row in measure(name, rows, make)],
        )
    ]
