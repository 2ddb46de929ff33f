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
LEANS = (16, 12, 8, 0)
CALIBRATED, QUERIES, TURN = 100, 40, 1
CONFIDENCE = 0.95
KINDS = ("deterministic", "calibrated")


def clustered(noise, seed=0):
    """Rows around centres, of about unit length."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((CENTRES, D))[rng.integers(CENTRES, size=N)] + noise * rng.standard_normal((N, D))
    return (rows / np.sqrt((1 + noise**2) * D)).astype(np.float32)


def leaning(rows, lean):
    """A maker of queries that are noise and lean to one of the rows."""
    return lambda rng: (
        np.float32(lean) * rows[rng.integers(len(rows))] + rng.standard_normal(rows.shape[1], dtype=np.float32)
    )


def sets():
    """Rows, and makers of queries by name."""
    shape = f"{N:,} x {D:,}"
    for kind, make in (
        ("tight clusters", partial(clustered, 0.3)),
        ("loose clusters", partial(clustered, 0.7)),
        ("no clusters", lambda: isotropic(N, D)[0]),
    ):
        rows = make()
        yield rows, {f"{kind}, {shape}, lean {lean}": leaning(rows, lean) for lean in LEANS}
    found = words()
    if found is not None:
        yield found[0], {"word vectors, 341,479 x 100": found[1]}


def contestants(rows, made, queries):
    """What answers a query, by name; everything that is calibrated is calibrated with these queries."""
    soft, index, coded = made
    indexed = IndexedSoftmax(index.calibrate(queries, temperatures=[1.0], confidence=CONFIDENCE))
    soft.calibrate(queries, confidence=CONFIDENCE)
    return {
        "NumPy": plain(rows),
        **{f"AdaptiveSoftmax, {kind}": partial(best_of, soft, guarantee=kind) for kind in KINDS},
        **{f"IndexedSoftmax, {kind}": partial(best_of, indexed, guarantee=kind) for kind in KINDS},
        "IndexedSoftmax with codes, deterministic": partial(best_of, coded),
    }


def truth(rows, query):
    """The best row, how far its logit is ahead, and log Z, in float64."""
    logits = rows.astype(np.float64) @ query.astype(np.float64)
    order = np.argpartition(logits, -2)[-2:]
    second, first = np.sort(logits[order])
    return int(logits.argmax()), first - second, np.logaddexp.reduce(logits)


def measure(name, rows, made, make):
    """One row per contestant."""
    rng = np.random.default_rng(1)
    functions = contestants(rows, made, np.stack([make(rng) for _ in range(CALIBRATED)]))
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
    measured = []
    for rows, makers in sets():
        made = AdaptiveSoftmax(rows), build(rows, seed=0), IndexedSoftmax(build(rows, codes=True, seed=0))
        for name, make in makers.items():
            measured.extend(measure(name, rows, made, make))
            print(*measured[-6:], sep="\n", flush=True)
    return [
        Table(
            f"The best class and its probability within {EPSILON:.0%}, on one thread: milliseconds of processor time "
            f"(medians of {QUERIES} queries, in turns), times as fast as NumPy, time relative to AdaptiveSoftmax with "
            "the guarantee deterministic (median ratios), how often the best class was right, how often Z was within "
            f"{EPSILON:.0%}, and the guarantees of the answers. The gap is the median distance of the two best logits",
            ["set", "how", "ms", "against NumPy", "time", "right", "Z within", "given"],
            measured,
        )
    ]
