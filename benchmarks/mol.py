"""Retrieval with a learned similarity: a MixtureIndex against the plain torch module, exact and with candidates."""

import resource
import time

import numpy as np

from benchmarks.tables import Table
from softindex import mol
from softindex.evaluate.timing import take_turns

QUERIES = 32
K = 100
THREADS = 2


def model(parts, seed=0):
    """An untrained mixture of logits for queries and items of 64 dimensions."""
    import torch

    torch.manual_seed(seed)
    return mol.MixtureOfLogits(64, 64, query_components=parts[0], item_components=parts[1], component_dim=32).eval()


def items_of(n, seed=0):
    """Items in loose clusters, as encoders produce them."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, n // 200), 64), dtype=np.float32)
    return centres[rng.integers(len(centres), size=n)] + rng.standard_normal((n, 64), dtype=np.float32)


def plain(similarity, items):
    """The baseline that a user would write: the module on all items, nothing cached, and torch.topk."""
    import torch

    torch.set_num_threads(THREADS)
    tensor = torch.from_numpy(items)

    def best(queries):
        with torch.no_grad():
            return torch.topk(similarity(torch.from_numpy(queries), tensor), K).indices.numpy()

    return best


def recall(found, truth):
    """Share of the true k best that was found."""
    return np.mean([np.isin(row, true).mean() for row, true in zip(found, truth, strict=True)])


def methods_of(index, listed):
    """Search functions of a batch of queries, by name."""

    def search(method, candidates):
        return lambda queries: index.top_k(queries, K, method=method, candidates=candidates, threads=THREADS)

    return {
        f"{method}{'' if candidates is None else f', {candidates}'}": search(method, candidates)
        for method, candidates in listed
    }


def compare(index, listed, rounds, peer=None):
    """One row per method: milliseconds per batch, speed relative to the first, set recall of the k best, proofs."""
    rng = np.random.default_rng(1)
    batches = [rng.standard_normal((QUERIES, 64), dtype=np.float32) for _ in range(rounds)]
    functions = {} if peer is None else {"torch, the module on all items": peer}
    functions |= methods_of(index, listed)
    take_turns(functions, batches[:1])
    seconds = {name: float(np.median(values)) for name, values in take_turns(functions, batches, stretch=1).items()}
    first, rows = next(iter(seconds)), []
    truth = index.top_k(batches[0], K, method="brute-force", threads=THREADS).ids
    for name, function in functions.items():
        begin = time.process_time()
        found = function(batches[0])
        spent = time.process_time() - begin
        facts = [f"{seconds[name] * 1e3:,.0f}", f"{spent * 1e3:,.0f}", f"{seconds[first] / seconds[name]:.2f}x"]
        if name == first and peer is not None:
            rows.append([name, *facts, f"{recall(found, truth):.4f}", "", "", ""])
            continue
        facts += [f"{recall(found.ids, truth):.4f}", f"{found.proven.mean():.0%}", f"{found.gap.mean():.3g}"]
        rows.append([name, *facts, f"{found.items_scored.mean():,.0f}"])
    return rows


COLUMNS = ["method", "ms", "CPU ms", "relative to the first", "set recall", "proven", "mean gap", "items scored"]


def run(options):
    """Tables for 20,000 items, with the module as baseline, and for a million."""
    similarity, items = model((8, 4)), items_of(20_000)
    small = compare(
        mol.build(similarity, items),
        [
            ("brute-force", None),
            ("exact", None),
            ("average", 200),
            ("average", 500),
            ("average", 4000),
            ("clusters", 500),
            ("per-embedding", 100),
            ("combined", (5, 200)),
        ],
        rounds=9,
        peer=plain(similarity, items),
    )
    similarity, items = model((4, 4)), items_of(options.items)
    begin = time.perf_counter()
    index = mol.build(similarity, items)
    built = time.perf_counter() - begin
    large = compare(index, [("brute-force", None), ("average", 4000), ("clusters", 4000)], rounds=5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [
        Table(
            f"The {K} best of 20,000 items for {QUERIES} queries at once, 8 x 4 components of 32, {THREADS} threads: "
            "milliseconds per batch (medians of interleaved calls), and CPU milliseconds of one call; the model is "
            "untrained",
            COLUMNS,
            small,
        ),
        Table(
            f"The same for {options.items:,} items, 4 x 4 components of 32; built in {built:.0f} s, peak memory of the "
            f"entire run {peak:.1f} GB",
            COLUMNS,
            large,
        ),
    ]
