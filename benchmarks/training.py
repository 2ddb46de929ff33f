"""Time of the sampled softmax loss compared with the full softmax, and of sampling and refreshing."""

import time

import numpy as np
import torch
from torch.nn import functional

from benchmarks.tables import Table
from softindex.evaluate.timing import take_turns
from softindex.train import MIDXSampler, SampledSoftmaxLoss, UniformSampler, UnigramSampler

BATCH, DRAWS, DIM, THREADS = 512, 20, 128, 2
SIZES = (1_000, 5_000, 10_000, 40_000, 200_000)
FLAT = (10_000, 100_000, 1_000_000)


def run(options):
    """Tables of the section."""
    torch.set_num_threads(THREADS)
    return [steps(), sampling()]


def problem(n):
    """Classes, frequencies, queries and targets, as in a partly trained model."""
    random = torch.Generator().manual_seed(0)
    items = torch.randn(n, DIM, generator=random) * 0.3
    frequencies = 1.0 / torch.arange(1, n + 1)
    queries = torch.randn(BATCH, DIM, generator=random) * 0.3
    targets = torch.randint(n, (BATCH,), generator=random)
    return items.requires_grad_(), frequencies, queries.requires_grad_(), targets


def samplers(n, items, frequencies, queries):
    """Refreshed samplers by name."""
    made = {
        "uniform": UniformSampler(n),
        "unigram": UnigramSampler(n),
        "MIDX": MIDXSampler(n),
        "MIDX, weighted": MIDXSampler(n, residual="weighted"),
    }
    made["unigram"].refresh(frequencies=frequencies)
    made["MIDX"].refresh(items)
    made["MIDX, weighted"].refresh(items, frequencies=frequencies, queries=queries)
    return made


def steps():
    """Forward and backward pass of the loss, with dense and sparse gradients, compared with the full softmax."""
    rows = []
    for n in SIZES:
        items, frequencies, queries, targets = problem(n)
        by_name = samplers(n, items, frequencies, queries)

        def backward(loss, items=items, queries=queries):
            items.grad = queries.grad = None
            loss.backward()

        def full(_, items=items, queries=queries, targets=targets, backward=backward):
            backward(functional.cross_entropy(queries @ items.T, targets))

        functions = {"full softmax": full}
        for sparse in (False, True):
            for name, sampler in by_name.items():
                loss = SampledSoftmaxLoss(sampler, draws=DRAWS, sparse=sparse)
                functions[name, sparse] = (
                    lambda _, loss=loss, items=items, queries=queries, targets=targets, backward=backward: backward(
                        loss(queries, targets, items)
                    )
                )
        times = {name: np.median(part) * 1e3 for name, part in take_turns(functions, range(12), stretch=3).items()}
        full_time = times.pop("full softmax")
        cells = [f"{sampled:.1f} ({full_time / sampled:.1f}x)" for sampled in times.values()]
        rows.append([f"{n:,}", f"{full_time:.1f}", *cells])
    kinds = [f"{name}{', sparse' if sparse else ''}" for sparse in (False, True) for name in by_name]
    title = (
        f"Forward and backward, batch {BATCH}, {DRAWS} draws, d = {DIM}, {THREADS} threads: median milliseconds of 12 "
        "interleaved steps, including the draws (speedup over the full softmax)"
    )
    return Table(title, ["classes", "full softmax", *kinds], rows)


def sampling():
    """Time of draws and of refreshes, from ten thousand classes to a million."""
    rows, functions, refreshes = [], {}, {}
    for n in FLAT:
        items, frequencies, queries, _ = problem(n)
        begin = time.perf_counter()
        plain = MIDXSampler(n)
        plain.refresh(items)
        middle = time.perf_counter()
        plain.refresh(items)
        warm = time.perf_counter()
        weighted = MIDXSampler(n, residual="weighted")
        weighted.refresh(items, frequencies=frequencies, queries=queries)
        refreshes[n] = middle - begin, warm - middle, time.perf_counter() - warm
        functions["MIDX", n] = lambda _, sampler=plain, queries=queries: sampler.sample(queries, DRAWS)
        functions["weighted", n] = lambda _, sampler=weighted, queries=queries: sampler.sample(queries, DRAWS)
    times = {name: np.median(part) * 1e3 for name, part in take_turns(functions, range(60), stretch=10).items()}
    for n in FLAT:
        cells = [f"{times[kind, n]:.1f} ({times[kind, n] / times[kind, FLAT[0]]:.2f})" for kind in ("MIDX", "weighted")]
        rows.append([f"{n:,}", *cells, *(f"{seconds:.1f}" for seconds in refreshes[n])])
    title = (
        f"Draws for {BATCH} queries, {DRAWS} each, d = {DIM}, {THREADS} threads: median milliseconds of 60 interleaved "
        "calls (relative to the first row); a refresh in seconds"
    )
    columns = ["classes", "MIDX", "MIDX, weighted", "first refresh", "later refresh", "refresh, weighted"]
    return Table(title, columns, rows)
