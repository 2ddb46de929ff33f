"""The families of vectors are what their names say, and made by the seed."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.families import FAMILIES, KINDS, MADE, STANDARD, open_family
from benchmarks.stated import Row, measure_family
from benchmarks.texts import Counts, _pieces

NAMES = list(FAMILIES)[: len(MADE)]


def test_there_are_enough():
    assert len(MADE) >= 17
    assert len(KINDS) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_a_family_has_the_size_asked_for_and_queries_that_are_not_items(name):
    family = open_family(name, n=1500, d=12, queries=40)
    assert len(family.items) == 1500
    assert family.items.dtype == np.float32
    assert np.isfinite(family.items).all()
    squared = (family.items.astype(float) ** 2).sum(axis=1)
    # The scale is taken over items and those held out.
    assert 0.7 < np.sqrt(squared.mean()) < 1.4
    assert len(family.queries) >= 11
    for kind, queries in family.queries.items():
        assert queries.shape == (40, family.items.shape[1]), kind
        assert np.isfinite(queries).all()
    items = {row.tobytes() for row in family.items}
    assert all(row.tobytes() in items for row in family.queries["items"])
    if name not in ("integers", "ratings", "binary", "signs", "sparse"):  # there two vectors may be equal
        assert not any(row.tobytes() in items for row in family.queries[STANDARD])


def test_the_same_seed_gives_the_same_vectors_and_another_seed_others():
    first, again, other = (open_family("hubs", n=500, d=8, queries=5, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.items, again.items)
    for kind, queries in first.queries.items():
        np.testing.assert_array_equal(queries, again.queries[kind])
    assert not np.array_equal(first.items, other.items)


def test_latent_vectors_are_the_svd_of_weighted_counts():
    rng = np.random.default_rng(0)
    counts = Counts(30)
    texts = [rng.integers(30, size=rng.integers(3, 12)) for _ in range(60)]
    for text in texts:
        counts.add(text)
    table = np.array([np.bincount(text, minlength=30) for text in texts], float)
    weighted = np.where(table > 0, 1 + np.log(np.maximum(table, 1)), 0) * np.log(61 / (1 + (table > 0).sum(axis=0)))
    left, sizes, _ = np.linalg.svd(weighted, full_matrices=False)
    expected = left[:, :4] * sizes[:4]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = counts.latent(4, fit=60)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=0.02)


def test_a_word_is_cut_into_its_longest_pieces():
    vocabulary = {"▁un": 1, "▁": 2, "likely": 3, "like": 4, "l": 5}
    assert _pieces("▁unlikely", vocabulary, 10) == [1, 3]
    assert _pieces("▁xl", vocabulary, 10) == [2, 5]


def test_rows_say_how_often_the_stated_error_is_exceeded():
    row = Row("a", "b", 0.1, np.array([0.1, 0.1, 0.0]), np.array([0.2, 0.22, 0.011]), np.zeros(3))
    assert row.exceeded == pytest.approx(2 / 3)


def test_a_family_is_measured_at_every_kind_and_temperature():
    import softindex

    family = open_family("clusters", n=800, d=8, queries=10)
    rows = list(measure_family(softindex.build(family.items), family, (0.1, 0.2)))
    assert [(row.kind, row.temperature) for row in rows] == [(kind, t) for kind in family.queries for t in (0.1, 0.2)]
    assert all((row.measured >= 0).all() and (row.stated >= 0).all() for row in rows)


@pytest.mark.parametrize(
    ("name", "n", "kind", "temperature"),
    [("near copies", 50_000, "random", 0.02), ("sentences made", 20_000, "short texts", 0.05)],
)
def test_the_stated_error_is_honest_where_tails_are_heavy(name, n, kind, temperature):
    """Queries that single out items of clusters of small mass, and mass that no sampled stretch meets."""
    import softindex

    family = open_family(name, n=n, queries=200)
    family = replace(family, queries={kind: family.queries[kind]})
    (row,) = measure_family(softindex.build(family.items), family, (temperature,))
    assert row.exceeded <= 0.02
