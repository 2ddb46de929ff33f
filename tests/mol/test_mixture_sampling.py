"""Draws follow the softmax of the similarity, or a distribution whose distance to it is bounded."""

import numpy as np
import pytest
from made_similarities import KINDS, assert_same, queries_of, similarity, truth, unit

from softindex.errors import InputError, MethodError, UnknownIdError
from softindex.mol import build
from softindex.testing import chi_square_score

LIMIT = 5.0
"""Of `chi_square_score`: a false alarm has a chance of about 3e-7."""


def softmax(values, temperature):
    logits = values / temperature
    return np.exp(logits - np.logaddexp.reduce(logits))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_exact_draws_follow_the_softmax(kind, temperature):
    model = similarity(kind, 3000)
    made, queries = build(model, np.arange(3000)), queries_of(model, 2)
    true, drawn = truth(model, queries), made.sample(queries, 20_000, temperature=temperature, seed=1)
    assert (drawn.error == 0).all()
    for q in range(2):
        counts = np.bincount(drawn.ids[q], minlength=3000)
        assert chi_square_score(counts, softmax(true[q], temperature)) < LIMIT
        np.testing.assert_allclose(drawn.scores[q], true[q, drawn.ids[q]], atol=1e-3)


def test_draws_by_rejection_follow_the_softmax_and_score_few_items():
    model = similarity("mixture", 20_000)
    made, query = build(model, np.arange(20_000)), queries_of(model, 1)
    ids, scored = [], []
    for seed in range(400):
        drawn = made.sample(query, 20, temperature=5.0, seed=seed)
        ids.append(drawn.ids)
        scored.append(drawn.items_scored[0])
    assert np.mean(scored) < 2500
    counts = np.bincount(np.concatenate(ids).ravel() % 50, minlength=50)
    chances = softmax(truth(model, query)[0], 5.0)
    assert chi_square_score(counts, np.bincount(np.arange(20_000) % 50, weights=chances)) < LIMIT
    best = np.argsort(-chances)[:200]
    counts = np.array([np.isin(np.concatenate(ids), best).sum(), 0])
    counts[1] = 8000 - counts[0]
    assert chi_square_score(counts, np.array([chances[best].sum(), 1 - chances[best].sum()])) < LIMIT


def candidates_of(made, queries, count, clusters, **options):
    """(b, count) the items that method "candidates" draws from, where the index was built with these clusters."""
    method = "average" if clusters == 0 else "clusters"
    return made.top_k(queries, count, method=method, candidates=count, **options).ids


CLUSTERS = pytest.mark.parametrize("clusters", [0, None])


@CLUSTERS
@pytest.mark.parametrize("candidates", [20, 200, 1000])
@pytest.mark.parametrize("temperature", [0.05, 0.3, 1.0])
def test_the_error_of_draws_from_candidates_is_bounded(candidates, temperature, clusters):
    model = similarity("logits", 1000)
    made, queries = build(model, np.arange(1000), clusters=clusters), queries_of(model)
    listed = candidates_of(made, queries, candidates, clusters)
    true = truth(model, queries)
    drawn = made.sample(queries, 3000, temperature=temperature, method="candidates", candidates=candidates, seed=0)
    for q in range(len(queries)):
        seen = made.rank(queries[q], np.unique(drawn.ids[q]), 1)
        assert seen.items_scored <= candidates
        chances = softmax(true[q], temperature)
        near = listed[q]
        missing = 1 - chances[near].sum()
        assert drawn.error[q] >= missing - 1e-6
        assert np.isin(drawn.ids[q], near).all()
        counts = np.bincount(drawn.ids[q], minlength=1000)
        assert chi_square_score(counts[near], chances[near] / chances[near].sum()) < LIMIT
    assert candidates < 1000 or (drawn.error == 0).all()


@CLUSTERS
@pytest.mark.parametrize("candidates", [20, 1000])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_draws_from_candidates_come_with_their_log_probabilities_and_bounds_on_log_z(candidates, temperature, clusters):
    model = similarity("mixture", 1000)
    made, queries, out = build(model, np.arange(1000), clusters=clusters), queries_of(model), np.arange(7)
    options = {"temperature": temperature, "method": "candidates", "candidates": candidates, "seed": 0}
    drawn = made.sample(queries, 50, exclude=out, **options)
    logits = truth(model, queries) / temperature
    logits[:, out] = -np.inf
    listed = candidates_of(made, queries, min(candidates, 993), clusters, exclude=out)
    for q in range(len(queries)):
        near = listed[q]
        inside = np.logaddexp.reduce(logits[q, near])
        np.testing.assert_allclose(drawn.log_prob[q], logits[q, drawn.ids[q]] - inside, atol=1e-8)
        assert drawn.log_partition.value[q] == pytest.approx(inside, abs=1e-8)
        log_z = np.logaddexp.reduce(logits[q])
        # The float64 truth has rounding errors too.
        assert drawn.log_partition.low[q] - 1e-9 <= log_z <= drawn.log_partition.high[q] + 1e-9
    if candidates == 1000:
        assert (drawn.log_partition.high - drawn.log_partition.low < 1e-8).all()
    alone = made.sample(queries[1], 50, exclude=out, **options)
    assert_same(drawn, alone, row=1)
    assert np.ndim(alone.log_partition.value) == np.ndim(alone.log_partition.low) == 0


def test_exact_draws_state_no_probabilities():
    model = similarity("mixture")
    drawn = build(model, np.arange(200)).sample(queries_of(model), 3, temperature=1.0, seed=0)
    assert np.isnan(drawn.log_prob).all()
    assert drawn.log_partition is None
    assert drawn.scores.shape == (6, 3)
    assert (drawn.items_scored <= 200).all()


@pytest.mark.parametrize("ids", ["rows", "integers", "strings"])
def test_unknown_ids_in_exclude_are_an_error_or_ignored(ids):
    model = similarity("mixture", 40)
    names = {"rows": None, "integers": np.arange(40) * 3, "strings": [f"item {i}" for i in range(40)]}[ids]
    missing = {"rows": 40, "integers": 1, "strings": "item 40"}[ids]
    made, queries = build(model, np.arange(40), ids=names), queries_of(model, 2)
    known = made.ids[:5].tolist()
    for exclude in ([*known, missing], [[*known, missing], [missing]]):
        with pytest.raises(UnknownIdError):
            made.top_k(queries, 3, exclude=exclude)
        with pytest.raises(UnknownIdError):
            made.sample(queries, 3, temperature=1.0, exclude=exclude)
    assert_same(
        made.top_k(queries, 3, exclude=[*known, missing], unknown="ignore"), made.top_k(queries, 3, exclude=known)
    )
    some = {"temperature": 1.0, "seed": 3}
    assert_same(
        made.sample(queries, 9, exclude=[[*known, missing], [missing]], unknown="ignore", **some),
        made.sample(queries, 9, exclude=[known, []], **some),
    )


def test_a_seed_gives_the_same_draws_and_excluded_items_are_never_drawn():
    model = similarity("mixture")
    made, queries = build(model, np.arange(200)), queries_of(model)
    for method in ("exact", "candidates"):
        first = made.sample(queries, 50, temperature=1.0, method=method, seed=7, exclude=np.arange(190))
        again = made.sample(queries, 50, temperature=1.0, method=method, seed=7, exclude=np.arange(190), threads=1)
        np.testing.assert_array_equal(first.ids, again.ids)
        assert (first.ids >= 190).all()
        turned = made.sample(queries[::-1].copy(), 50, temperature=1.0, method=method, seed=7, exclude=np.arange(190))
        np.testing.assert_array_equal(first.ids, turned.ids[::-1])
        alone = made.sample(queries[2], 50, temperature=1.0, method=method, seed=7, exclude=np.arange(190))
        np.testing.assert_array_equal(first.ids[2], alone.ids)
        twice = made.sample(queries[[2, 2]], 50, temperature=1.0, method=method, seed=7)
        assert (twice.ids[0] != twice.ids[1]).any()
    one = made.sample(queries[0], 4, temperature=1.0, seed=1)
    assert one.ids.shape == (4,)
    assert one.seed == 1


def test_bad_arguments_are_refused():
    model = similarity("mixture")
    made, queries = build(model, np.arange(200)), queries_of(model)
    with pytest.raises(MethodError, match="candidates"):
        made.sample(queries, 3, temperature=1.0, method="fast")
    with pytest.raises(InputError, match="leave it out"):
        made.sample(queries, 3, temperature=1.0, candidates=10)
    with pytest.raises(InputError, match="temperature"):
        made.sample(queries, 3, temperature=0)
    with pytest.raises(TypeError, match="temperature"):
        made.sample(queries, 3)
    with pytest.raises(InputError, match="unknown"):
        made.sample(queries, 3, temperature=1.0, unknown="maybe")
    with pytest.raises(InputError, match="left"):
        made.sample(queries, 3, temperature=1.0, exclude=np.arange(200))


@pytest.mark.parametrize("method", ["exact", "candidates"])
def test_the_stated_error_holds_where_the_temperature_is_close_to_rounding(method):
    made = similarity("logits", n=8, parts=(2, 2), d=16, temperature=0.05)
    rng = np.random.default_rng(5)
    made.components[:] = unit(made.components[:1] + 1e-6 * rng.standard_normal(made.components.shape))
    queries = queries_of(made, b=1)
    scores, index = truth(made, queries)[0], build(made, np.arange(8))
    for temperature in (1e-4, 1e-6):
        chances = softmax(scores, temperature)
        drawn = index.sample(queries[0], 20_000, temperature=temperature, method=method, seed=0)
        shares = np.bincount(drawn.ids, minlength=8) / 20_000
        assert 0.5 * np.abs(shares - chances).sum() <= drawn.error + 0.02
