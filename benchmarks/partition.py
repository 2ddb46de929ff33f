"""How good the partition is: sums of squares, errors of the plain laws, sizes of clusters, and the time it takes."""

import numpy as np

import softindex
from benchmarks.build import faiss_alone, partition_alone, seconds
from benchmarks.fidelity import sets
from benchmarks.tables import Table
from softindex.evaluate.distances import between

TEMPERATURE = 0.1
QUERIES = 120
METHODS = ("2ls", "s-2ls", "sd-2ls")
WIDEST_FULL = 128
"""Up to this many dimensions sd-2ls has full covariances, as in the paper; rank 8 above."""


def sum_of_squares(vectors, assignment):
    """The sum of squared distances between the items and the means of their clusters."""
    order = np.argsort(assignment, kind="stable")
    borders = np.flatnonzero(np.diff(assignment[order])) + 1
    parts = (vectors[members].astype(np.float64) for members in np.split(order, borders))
    return sum(np.square(part - part.mean(axis=0)).sum() for part in parts)


def hold_out(vectors):
    """Items and queries: random rows are taken from the items."""
    rows = np.random.default_rng(5).choice(len(vectors), QUERIES, replace=False)
    return np.delete(vectors, rows, axis=0), vectors[rows]


def divergences(index, queries):
    """Mean KL(law || softmax) of each method without probes."""
    settings = {"temperature": TEMPERATURE}
    exact = index.cluster_log_masses(queries, method="exact", **settings)[0]
    laws = (index.cluster_log_masses(queries, method=method, probes=0, **settings)[0] for method in METHODS)
    return [between(law, exact).kl.mean() for law in laws]


def measure(name, vectors, clusters=None):
    """One row of the table."""
    items, queries = hold_out(vectors)
    clusters = clusters or round(len(items) ** 0.5)
    results = {}

    def keep(function):
        results[function] = function(items, clusters, 0)

    times = {function: seconds(keep, function) for function in (faiss_alone, partition_alone)}
    squares = {function: sum_of_squares(items, assignment) for function, assignment in results.items()}
    sizes = [np.bincount(assignment, minlength=clusters).max() for assignment in results.values()]
    dispersion = "full" if items.shape[1] <= WIDEST_FULL else 8
    index = softindex.build(items, clusters=clusters, dispersion=dispersion)
    return [
        name,
        f"{clusters:,}",
        f"{squares[partition_alone] / squares[faiss_alone]:.3f}",
        *(f"{value:.1e}" for value in divergences(index, queries)),
        *(f"{size * clusters / len(items):.1f}" for size in sizes),
        f"{times[partition_alone] / times[faiss_alone]:.2f}",
    ]


def run(options):
    """One table over all sets of the section fidelity."""
    rows = []
    for name, make, settings in sets(options):
        vectors = make()
        if vectors is not None:
            rows.append(measure(name, vectors, **settings))
        del vectors
    title = (
        "The partition against k-means of faiss, which starts from random items, with the same settings: sum of "
        f"squares and time relative to it; mean KL(law || softmax) without probes at t = {TEMPERATURE} over {QUERIES} "
        "queries that are not among the items (sd-2ls with full covariances, rank 8 above "
        f"{WIDEST_FULL} dimensions); largest cluster relative to the mean"
    )
    laws = [f"KL, {method}" for method in METHODS]
    columns = ["set", "clusters", "sum of squares", *laws, "largest, faiss", "largest", "time / faiss"]
    return [Table(title, columns, rows)]
