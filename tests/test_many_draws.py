"""Many draws for each query of a batch are those of the query alone, wherever the queries share a scan."""

import numpy as np
import pytest

import softindex

every_storage = pytest.mark.parametrize("storage", ["float32", "int16", "int8"])


def made(n, d, clusters, storage="float32"):
    """An index of n normal vectors of length about one."""
    vectors = np.random.default_rng(5).standard_normal((n, d)).astype(np.float32) / np.float32(np.sqrt(d))
    return softindex.build(vectors, clusters=clusters, storage=storage, dispersion=4, threads=1)


def queries_of(b, d):
    return np.random.default_rng(6).standard_normal((b, d)).astype(np.float32)


def check_batches(index, queries, n, sizes, **options):
    """Draws of batches of every size, on one thread or two, are those of each query alone, bit for bit."""
    alone = [index.sample(query, n, seed=3, threads=1, **options) for query in queries]
    for size in sizes:
        for threads in (1, 2):
            together = index.sample(queries[:size], n, seed=3, threads=threads, **options)
            for q in range(size):
                np.testing.assert_array_equal(together.ids[q], alone[q].ids)
                np.testing.assert_array_equal(together.log_prob[q], alone[q].log_prob)


@every_storage
@pytest.mark.parametrize("clusters", [6, 300])
def test_draws_of_a_batch_are_those_of_each_query_alone(storage, clusters):
    # In six clusters a batch makes several scans of each; in three hundred most scans serve one query or two.
    index = made(2_500, 19, clusters, storage)
    check_batches(index, queries_of(90, 19), 25, (2, 3, 5, 90), temperature=0.5)


@every_storage
def test_rows_too_long_to_be_converted_together_change_nothing(storage):
    index = made(300, 530, 4, storage)
    check_batches(index, queries_of(9, 530), 12, (9,), temperature=0.3)


def test_a_cluster_too_large_for_all_queries_at_once_changes_nothing():
    index = made(70_000, 3, 2)
    check_batches(index, queries_of(9, 3), 10, (9,), temperature=0.5, probes=0)


@every_storage
def test_log_prob_is_that_of_the_draws(storage):
    index, queries = made(2_500, 19, 20, storage), queries_of(40, 19)
    draws = index.sample(queries, 50, temperature=0.4, seed=1, threads=1)
    np.testing.assert_array_equal(index.log_prob(queries, draws.ids, temperature=0.4, threads=1), draws.log_prob)


def test_every_query_of_a_batch_keeps_its_own_temperature():
    index, queries = made(2_500, 19, 6), queries_of(33, 19)
    temperatures = np.linspace(0.2, 2.0, 33)
    together = index.sample(queries, 40, temperature=temperatures, seed=2, threads=1)
    for query, temperature, ids, log_prob in zip(queries, temperatures, together.ids, together.log_prob, strict=True):
        alone = index.sample(query, 40, temperature=float(temperature), seed=2, threads=1)
        np.testing.assert_array_equal(ids, alone.ids)
        np.testing.assert_array_equal(log_prob, alone.log_prob)
