"""A sparse query is the same query with zeros, for every method and guarantee."""

import numpy as np
import pytest

from softindex import AdaptiveSoftmax, InputError
from softindex.adaptive import GUARANTEES


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(0)
    soft = AdaptiveSoftmax(rng.standard_normal((60, 3000)).astype(np.float32))
    indices = np.sort(rng.choice(3000, 40, replace=False))
    values = rng.standard_normal(40).astype(np.float32)
    dense = np.zeros(3000, np.float32)
    dense[indices] = values
    soft.calibrate(rng.standard_normal((50, 3000)).astype(np.float32), confidence=0.9)
    return soft, indices, values, dense


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_indices_and_values_are_a_query(made, guarantee):
    soft, indices, values, dense = made
    options = {"temperature": 0.5, "guarantee": guarantee, "confidence": 0.9}
    for query in ((indices, values), (indices[::-1], values[::-1])):
        found, expected = soft.top_k(query, 3, **options), soft.top_k(dense, 3, **options)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.log_prob, expected.log_prob)
        assert soft.log_partition(query, **options).value == soft.log_partition(dense, **options).value


def test_draws_and_nuclei_take_them_too(made):
    soft, indices, values, dense = made
    first, second = (soft.sample(query, 5, temperature=1.0, seed=1) for query in ((indices, values), dense))
    np.testing.assert_array_equal(first.ids, second.ids)
    first, second = (soft.nucleus(query, 0.5, temperature=1.0) for query in ((indices, values), dense))
    np.testing.assert_array_equal(first.ids, second.ids)


def test_rows_of_scipy_are_queries(made):
    sparse = pytest.importorskip("scipy.sparse")
    soft, _, _, dense = made
    batch = np.stack([dense, 2 * dense])
    for queries in (sparse.csr_matrix(batch), sparse.coo_matrix(batch)):
        found, expected = (soft.top_k(each, 2, temperature=1.0, guarantee="pac") for each in (queries, batch))
        np.testing.assert_array_equal(found.ids, expected.ids)


def test_nothing_of_another_query_stays_behind(made):
    """Sparse and dense queries in turns, which share memory: the same bits as alone, for all that an answer holds."""
    soft, _, _, dense = made
    scipy = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(1)
    full = rng.standard_normal(3000).astype(np.float32)
    few = np.where(rng.random(3000) < 0.01, full, 0).astype(np.float32)
    sparse = {id(each): scipy.csr_matrix(each[None]) for each in (few, dense)}
    options = {"temperature": 0.5, "guarantee": "pac", "confidence": 0.9, "threads": 1}
    alone = {
        id(each): AdaptiveSoftmax(soft._solver.layer.rows.array).top_k(each[None], 3, **options)
        for each in (full, few, dense)
    }
    for each in (few, full, dense, full, full, few, dense, few):
        for queries in [each[None], *([sparse[id(each)]] if id(each) in sparse else [])]:
            found, expected = soft.top_k(queries, 3, **options), alone[id(each)]
            for name in ("ids", "scores", "log_prob", "multiplications", "guarantee"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    batch, options["temperature"] = np.stack([few, dense, few]), [0.5, 2.0, 1.0]
    found, expected = (soft.top_k(each, 3, **options) for each in (scipy.csr_matrix(batch), batch))
    np.testing.assert_array_equal(found.log_prob, expected.log_prob)


@pytest.mark.parametrize("n", [3, 10, 40])
@pytest.mark.parametrize("beginning", ["zeros", "numbers"])
def test_a_query_that_begins_unlike_the_rest_has_one_answer(n, beginning):
    """What its first numbers are only decides how it is read: not the bits of the answer, and not what it cost."""
    d, rng = 30_000, np.random.default_rng(n)
    weights = (rng.standard_normal((n, d)) / np.sqrt(d)).astype(np.float32)
    dense = rng.standard_normal(d).astype(np.float32)
    dense[slice(0, 5000) if beginning == "zeros" else slice(5000, None)] = 0
    soft, where = AdaptiveSoftmax(weights), np.flatnonzero(dense)
    for query in (dense, 300 * weights[1] * (dense != 0)):
        found, expected = (
            soft.top_k(each, 2, temperature=1.0, guarantee="pac", threads=1) for each in (query, (where, query[where]))
        )
        for name in ("ids", "scores", "log_prob", "guarantee", "multiplications", "bytes_read", "items_scored"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_zeros_and_repeated_indices(made):
    soft, indices, values, dense = made
    options = {"temperature": 0.5, "guarantee": "pac"}
    twice = (np.concatenate([indices, indices]), np.concatenate([values, values]))
    np.testing.assert_array_equal(soft.top_k(twice, 2, **options).scores, soft.top_k(2 * dense, 2, **options).scores)
    nothing = soft.top_k((np.empty(0, int), np.empty(0)), 2, **options)
    np.testing.assert_array_equal(nothing.ids, [0, 1])
    np.testing.assert_allclose(nothing.log_prob, -np.log(60))


def test_a_query_of_few_numbers_reads_only_their_columns(made):
    soft, indices, values, dense = made
    found = soft.top_k((indices, values), 1, temperature=1.0, guarantee="pac")
    assert found.multiplications < 60 * 100
    exact = soft.top_k(dense, 1, temperature=1.0, guarantee="exact")
    np.testing.assert_array_equal(found.ids, exact.ids)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ((np.array([0, 3000]), np.ones(2)), "index 3000"),
        ((np.array([-1]), np.ones(1)), "index -1"),
        ((np.array([1, 2]), np.ones(3)), "same length"),
        ((np.array([1]), np.array(["a"])), "same length"),
        ((np.array([1]), np.array([np.nan])), "nan in column 1"),
    ],
)
def test_what_is_no_query_is_refused(made, query, said):
    with pytest.raises(InputError, match=said):
        made[0].top_k(query, 1, temperature=1.0)
    with pytest.raises(InputError, match=said):
        made[0].top_k(query, 1, temperature=1.0, guarantee="pac")
