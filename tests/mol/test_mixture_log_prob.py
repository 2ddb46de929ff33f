"""Log-probabilities of a learned similarity, and draws without replacement."""

from itertools import permutations

import numpy as np
import pytest
from made_similarities import KINDS, assert_same, queries_of, similarity, truth

from softindex.errors import InputError, UnknownIdError
from softindex.mol import build
from softindex.rejection import draw_slate
from softindex.testing import chi_square_score

LIMIT = 5.0
"""Of `chi_square_score`: a false alarm has a chance of about 3e-7."""


def log_softmax(values, temperature):
    logits = values / temperature
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def made(kind="mixture", n=200, **options):
    model = similarity(kind, n, **options)
    return model, build(model, np.arange(n))


@pytest.mark.parametrize("kind", KINDS)
def test_log_prob_is_that_of_the_softmax_of_all_scores(kind):
    model, index = made(kind)
    queries, temperature = queries_of(model, 3), np.array([0.3, 1.0, 4.0])
    wanted = log_softmax(truth(model, queries), temperature[:, None])
    found = index.log_prob(queries, np.arange(200), temperature=temperature)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, atol=1e-9)
    np.testing.assert_array_equal(index.log_prob(queries[1], [5, 7], temperature=1.0), found[1, [5, 7]])


def test_excluded_ids_cannot_be_drawn_and_the_others_take_their_place():
    model, index = made()
    queries, out = queries_of(model, 2), [[3, 4], [5]]
    found = index.log_prob(queries, np.arange(200), temperature=0.5, exclude=out)
    for q, excluded in enumerate(out):
        left = np.setdiff1d(np.arange(200), excluded)
        wanted = log_softmax(truth(model, queries)[q, left], 0.5)
        np.testing.assert_allclose(found[q, left], wanted, atol=1e-4)
        assert (found[q, excluded] == -np.inf).all()
    missing = index.log_prob(queries, [1, 999], temperature=0.5, missing="-inf")
    assert (missing[:, 1] == -np.inf).all()
    assert np.isfinite(missing[:, 0]).all()
    with pytest.raises(UnknownIdError):
        index.log_prob(queries, [999], temperature=0.5)


@pytest.mark.parametrize("replace", [True, False])
def test_log_prob_of_draws_from_candidates_is_what_they_came_with(replace):
    model, index = made()
    options = {"temperature": 0.7, "method": "candidates", "candidates": 30, "replace": replace}
    queries = queries_of(model, 4)
    drawn = index.sample(queries, 12, seed=3, **options)
    np.testing.assert_allclose(index.log_prob(queries, drawn.ids, **options), drawn.log_prob, atol=1e-12)


@pytest.mark.parametrize("method", ["exact", "candidates"])
def test_the_probabilities_of_all_slates_sum_to_one(method):
    model, index = made(n=6)
    query, slates = queries_of(model, 1), np.array(list(permutations(range(6), 3)))
    options = {"temperature": 0.5, "method": method, "replace": False}
    steps = index.log_prob(np.repeat(query, len(slates), axis=0), slates, **options)
    assert np.exp(steps.sum(axis=1)).sum() == pytest.approx(1, abs=1e-9)
    repeated = index.log_prob(query, [[2, 2, 4]], **options)[0]
    np.testing.assert_allclose(repeated[[0, 2]], index.log_prob(query, [[2, 4]], **options)[0], atol=1e-12)
    assert repeated[1] == -np.inf


@pytest.mark.parametrize("method", ["exact", "candidates"])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_slates_follow_their_law(method, temperature):
    """Slates of two out of seven, drawn once per copy of the query; the coldest has almost one choice."""
    model, index = made(n=7)
    query = queries_of(model, 1)
    options = {"temperature": temperature, "method": method, "replace": False}
    drawn = index.sample(np.repeat(query, 4000, axis=0), 2, seed=1, **options)
    assert (drawn.ids[:, 0] != drawn.ids[:, 1]).all()
    slates = np.array(list(permutations(range(7), 2)))
    chances = np.exp(index.log_prob(np.repeat(query, len(slates), axis=0), slates, **options).sum(axis=1))
    counts = (drawn.ids[:, None] == slates).all(axis=2).sum(axis=0)
    assert counts.sum() == 4000
    assert chi_square_score(counts, chances) < LIMIT


def test_slates_by_rejection_score_few_items_and_follow_their_law():
    """The second step of slates, over remainders of the id, against the law averaged over the first step."""
    model, index = made("mixture", 20_000)
    query = queries_of(model, 1)
    drawn = index.sample(np.repeat(query, 600, axis=0), 2, temperature=5.0, replace=False, seed=2)
    assert np.mean(drawn.items_scored) < 2500
    p = np.exp(log_softmax(truth(model, query)[0], 5.0))
    second = p * ((p / (1 - p)).sum() - p / (1 - p))
    counts = np.bincount(drawn.ids[:, 1] % 20, minlength=20)
    assert chi_square_score(counts, np.bincount(np.arange(20_000) % 20, weights=second)) < LIMIT


def test_items_that_outweigh_all_others_do_not_stop_a_slate():
    """Each of these logits is 40 above the next, so that draws with replacement would return one item for ever."""
    logits = -40.0 * np.arange(50)
    found = draw_slate(logits + 1, lambda positions: logits[positions], 20, np.random.default_rng(0), budget=50)
    np.testing.assert_array_equal(found.positions, np.arange(20))
    np.testing.assert_array_equal(found.logits, logits[:20])


def test_a_slate_of_everything_has_every_item_once():
    model, index = made(n=40)
    drawn = index.sample(queries_of(model, 3), 38, temperature=0.2, replace=False, exclude=[1, 2], seed=0)
    assert (np.sort(drawn.ids, axis=1) == np.setdiff1d(np.arange(40), [1, 2])).all()
    for options, words in (
        ({"n": 39, "exclude": [1, 2]}, "38 are left"),
        ({"n": 20, "method": "candidates", "candidates": 10}, "10 candidates"),
        ({"n": 2, "replace": None}, "replace"),
    ):
        with pytest.raises(InputError, match=words):
            index.sample(queries_of(model, 1), temperature=1.0, **{"replace": False, **options})


def test_slates_depend_on_the_seed_and_the_query_only():
    model, index = made(n=3000)
    queries = queries_of(model, 5)
    options = {"temperature": 1.0, "replace": False, "seed": 7}
    whole = index.sample(queries, 20, **options)
    for row in (0, 3):
        assert_same(whole, index.sample(queries[row], 20, threads=1, **options), row)


def test_the_error_of_slates_from_candidates_is_bounded():
    """The bound of a slate of two is at least the true total variation between the laws of ordered pairs."""
    model, index = made(n=12)
    query = queries_of(model, 1)
    slates = np.array(list(permutations(range(12), 2)))
    options = {"temperature": 0.5, "replace": False}
    many = np.repeat(query, len(slates), axis=0)
    some = {"method": "candidates", "candidates": 6}
    laws = [np.exp(index.log_prob(many, slates, **options, **more).sum(axis=1)) for more in ({}, some)]
    stated = index.sample(query, 2, seed=0, **options, **some).error[0]
    assert np.abs(laws[0] - laws[1]).sum() / 2 <= stated + 1e-9
