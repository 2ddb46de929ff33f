"""AdaptiveSoftmax where one class is ahead of the others by more or less: processor time, bytes, and answers."""

import time
from functools import partial

import numpy as np

from benchmarks.adaptive import EPSILON, best_of, isotropic, plain
from benchmarks.tables import Table
from softindex import AdaptiveSoftmax
from softindex.evaluate.timing import take_turns
from softindex.kernels import padded, screen, screen_nibbles

N, D, SPREAD = 30_000, 4096, 2.68
"""With this standard deviation of the other logits, a logit of 16 has probability 0.89."""
QUERIES, TURN = 20, 1
KINDS = ("deterministic", "calibrated")


def query_of(weights, logit, spread, rng):
    """A query whose logits are normal with this standard deviation, but for one; None: no exception."""
    query = np.float32(spread) * rng.standard_normal(weights.shape[1], dtype=np.float32)
    if logit is not None:
        row = weights[rng.integers(len(weights))]
        query += (logit - row @ query) / (row @ row) * row
    return query


def gaps(soft, weights):
    """One row per gap and guarantee."""
    rows, rng, peer = [], np.random.default_rng(1), plain(weights)
    for logit, spread in ((12, SPREAD), (16, SPREAD), (20, SPREAD), (24, SPREAD), (None, 1.0), (None, SPREAD)):
        soft.calibrate(np.stack([query_of(weights, logit, spread, rng) for _ in range(80)]), threads=1)
        queries = [query_of(weights, logit, spread, rng) for _ in range(QUERIES)]
        functions = {"NumPy": peer, **{kind: partial(best_of, soft, guarantee=kind) for kind in KINDS}}
        take_turns(functions, queries[:2])
        taken = take_turns(functions, queries, stretch=TURN, clock=time.process_time)
        for kind in KINDS:
            found = [best_of(soft, query, guarantee=kind) for query in queries]
            right = np.mean([one.ids[0] == peer(query)[0] for one, query in zip(found, queries, strict=True)])
            ratio = np.median(taken["NumPy"] / taken[kind])
            rows.append(
                [
                    f"noise, sd {spread:g}" if logit is None else f"{logit}",
                    kind,
                    f"{np.median(taken['NumPy']) * 1e3:.1f}",
                    f"{np.median(taken[kind]) * 1e3:.1f}",
                    f"{ratio:.2f}x",
                    f"{np.mean([one.bytes_read for one in found]) / weights.nbytes:.0%}",
                    f"{right:.0%}",
                    ", ".join(sorted({one.guarantee for one in found})),
                ]
            )
    return rows


def speeds(soft):
    """Gigabytes per second of processor time: a plain read of the codes, and the products that screens compute."""
    four, eight = soft._solver.layer.screen.levels
    rng, dots = np.random.default_rng(2), np.empty((1, N), np.int64)
    wide = np.zeros((1, padded(D)), np.int16)
    wide[0, :D] = rng.integers(-16383, 16384, D)
    narrow = rng.integers(-127, 128, (1, 2 * four.codes.shape[1])).astype(np.int8)
    functions = {}
    for name, codes, product in (
        ("8", eight.codes, lambda _: screen(eight.codes, wide, dots, 1)),
        ("4", four.codes, lambda _: screen_nibbles(four.codes, narrow, dots, 1)),
    ):
        words = codes.reshape(-1).view(np.int64)
        functions[name, "plain read", codes.nbytes] = lambda _, words=words: np.bitwise_xor.reduce(words)
        functions[name, "products with a query", codes.nbytes] = product
    taken = take_turns(functions, range(QUERIES), stretch=TURN, clock=time.process_time)
    return [
        [bits, what, f"{size / 1e6:.0f}", f"{np.median(taken[bits, what, size]) * 1e3:.2f}",
         f"{size / np.median(taken[bits, what, size]) / 1e9:.1f}"]
        for bits, what, size in functions
    ]  # fmt: skip


def run(options):
    """The gain against the gap, and how fast the screens read."""
    weights = isotropic(N, D)[0]
    soft = AdaptiveSoftmax(weights)
    return [
        Table(
            f"The best of {N:,} x {D:,} and its probability within {EPSILON:.0%}, by the logit of a planted class "
            f"among others of standard deviation {SPREAD:g}: milliseconds of processor time (medians, one thread, in "
            "turns), median ratio, bytes read relative to the weights, how often the best was right, and the "
            "guarantees of the answers",
            ["logit", "guarantee", "NumPy", "ms", "against NumPy", "bytes", "right", "given"],
            gaps(soft, weights),
        ),
        Table(
            "How fast screens read: processor time on one thread, in turns",
            ["bits", "what", "MB", "ms", "GB/s"],
            speeds(soft),
        ),
    ]
