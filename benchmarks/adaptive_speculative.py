"""Speculative draws with an index as the draft, against exact draws by rejection and against a plain product."""

import time
from functools import partial

import numpy as np

from benchmarks.adaptive_gaps import SPREAD, query_of
from benchmarks.tables import Table
from softindex import AdaptiveSoftmax, build
from softindex.adaptive.speculative import speculate
from softindex.evaluate.timing import take_turns

N, D, QUERIES = 20_000, 1024, 12


def clustered(seed=0):
    """Rows around 200 centres, which an index likes."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((200, D))[rng.integers(200, size=N)] + 0.7 * rng.standard_normal((N, D))
    return (rows / np.sqrt(1.49 * D)).astype(np.float32)


def numpy_draw(weights, rng, query):
    """What a user writes."""
    logits = weights @ query
    logits -= logits.max()
    running = np.cumsum(np.exp(logits, dtype=np.float64))
    return np.searchsorted(running, rng.random() * running[-1])


def run(options):
    """Processor time per draw, and how often the draft is accepted."""
    weights = clustered()
    layer, index, rows = AdaptiveSoftmax(weights), build(weights, seed=0), []
    for logit in (None, 12, 16):
        rng = np.random.default_rng(1)
        queries = [query_of(weights, logit, SPREAD, rng)[None] for _ in range(QUERIES)]
        drafts = {
            "draft: index": {},
            "draft: index, method 2ls, no probes": {"method": "2ls", "probes": 0},
        }
        functions = {
            "NumPy": lambda query, rng=rng: numpy_draw(weights, rng, query[0]),
            "AdaptiveSoftmax.sample, epsilon 0.3": lambda query: layer.sample(
                query, temperature=1.0, epsilon=0.3, threads=1
            ),
            **{
                name: partial(lambda law, query: speculate(layer, index, query, temperature=1.0, **law), law)
                for name, law in drafts.items()
            },
        }
        take_turns(functions, queries[:1])
        taken = take_turns(functions, queries, stretch=1, clock=time.process_time)
        for name in functions:
            share = ""
            if name in drafts:
                many = np.concatenate([np.tile(query, (20, 1)) for query in queries[:4]])
                share = f"{speculate(layer, index, many, temperature=1.0, seed=1, **drafts[name]).accepted.mean():.0%}"
            ratio = np.median(taken["NumPy"] / taken[name])
            shown = "noise" if logit is None else f"{logit}"
            rows.append([shown, name, f"{np.median(taken[name]) * 1e3:.2f}", f"{ratio:.2f}x", share])
    return [
        Table(
            f"One draw from the softmax of {N:,} x {D:,} clustered rows, by the logit of a planted class: milliseconds "
            "of processor time (medians, in turns), median ratio, and proposals accepted",
            ["logit", "how", "ms", "against NumPy", "accepted"],
            rows,
        )
    ]
