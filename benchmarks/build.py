"""Build time, compared with k-means and assignment alone in faiss, with the same settings."""

import os
import time

import faiss
import numpy as np

import softindex
from benchmarks.fidelity import mixture
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_unbalanced
from softindex.partition import ITERATIONS, POINTS_PER_CENTROID, partition

ROUNDS = 3


def faiss_alone(vectors, clusters, seed):
    """Train with faiss.Kmeans, which starts from random items, and assign every vector; returns clusters (n,)."""
    settings = {"niter": ITERATIONS, "seed": seed, "max_points_per_centroid": POINTS_PER_CENTROID}
    kmeans = faiss.Kmeans(vectors.shape[1], clusters, **settings)
    kmeans.train(vectors)
    return kmeans.assign(vectors)[1]


def partition_alone(vectors, clusters, seed):
    """The partition of softindex.build, on all cores; returns clusters (n,)."""
    return partition(vectors, clusters, seed=seed, threads=len(os.sched_getaffinity(0))).assignment


def build(vectors, clusters, seed):
    """Build an index: the partition, order and moments."""
    return softindex.build(vectors, clusters=clusters, seed=seed)


def seconds(function, *arguments):
    """How long one call takes."""
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def sets(options):
    """Name, vectors and number of clusters."""
    yield f"synth-unbalanced, {options.items:,} x 100", synth_unbalanced(options.items).vectors, 1024
    yield "mixture, 300,000 x 384", mixture(np.random.default_rng(5), 300_000, 384, 550, 0.05), 550


def run(options):
    """Interleaved rounds of each."""
    rows = []
    for name, vectors, clusters in sets(options):
        functions = (faiss_alone, partition_alone, build)
        rounds = [[seconds(function, vectors, clusters, seed) for function in functions] for seed in range(ROUNDS)]
        alone, parts, complete = np.median(rounds, axis=0)
        ratios = [f"{value / alone:.2f}" for value in (parts, complete)]
        rows.append([name, f"{clusters:,}", *(f"{value:.1f}" for value in (alone, parts, complete)), *ratios])
    title = (
        f"{ITERATIONS} iterations, all cores: median seconds of {ROUNDS} interleaved rounds, and ratios to faiss; "
        "the partition is k-means, assignment and limits of sizes, the build adds order and moments"
    )
    columns = ["set", "clusters", "faiss k-means + assignment", "partition", "softindex.build"]
    return [Table(title, [*columns, "partition / faiss", "build / faiss"], rows)]
