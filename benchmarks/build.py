"""Build time, compared with k-means and assignment alone in faiss, with the same settings."""

import time

import faiss
import numpy as np

import softindex
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_unbalanced
from softindex.partition.kmeans import ITERATIONS, POINTS_PER_CENTROID

CLUSTERS = 1024


def faiss_alone(vectors, seed):
    """Train with faiss.Kmeans and assign every vector; returns seconds."""
    begin = time.perf_counter()
    kmeans = faiss.Kmeans(
        vectors.shape[1], CLUSTERS, niter=ITERATIONS, seed=seed, max_points_per_centroid=POINTS_PER_CENTROID
    )
    kmeans.train(vectors)
    kmeans.assign(vectors)
    return time.perf_counter() - begin


def ours(vectors, seed):
    """Build an index; returns seconds."""
    begin = time.perf_counter()
    softindex.build(vectors, clusters=CLUSTERS, seed=seed)
    return time.perf_counter() - begin


def run(options):
    """Three interleaved rounds of each."""
    vectors = synth_unbalanced(options.items).vectors
    rounds = [(faiss_alone(vectors, seed), ours(vectors, seed)) for seed in range(3)]
    alone, complete = np.median(rounds, axis=0)
    return [
        Table(
            f"synth-unbalanced, {options.items:,} x 100, K = {CLUSTERS}, {ITERATIONS} iterations, all cores: "
            "median seconds of 3 interleaved rounds",
            ["faiss k-means + assignment", "softindex.build (k-means, assignment, order, moments)", "ratio"],
            [[f"{alone:.1f}", f"{complete:.1f}", f"{complete / alone:.2f}"]],
        )
    ]
