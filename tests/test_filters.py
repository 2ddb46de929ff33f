"""Allowed items: the law over them alone, however many they are and however they are named."""

import numpy as np
import pytest

import softindex
from softindex.testing import chi_square_score

N, D = 30_000, 16
"""So many numbers that heavy exclusions are scanned, not conditioned."""


def make(seed, n):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((40, D))
    vectors = centres[rng.integers(40, size=n)] + 0.5 * rng.standard_normal((n, D))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VECTORS, QUERIES = make(1, N), make(2, 5)
LOG_BIAS = np.random.default_rng(3).standard_normal(N).astype(np.float32)
METHODS = ("exact", "certified", "sd-2ls")
SHARES = {"one": 1 / N, "few": 0.01, "listed": 0.15, "half": 0.5, "nearly all": 0.999}


@pytest.fixture(scope="module", params=["plain", "biased", "snapshot"])
def made(request, tmp_path_factory):
    """An index or a snapshot, its vectors and its log biases by id; -inf for an id that is not there."""
    bias = LOG_BIAS if request.param == "biased" else None
    index = softindex.build(VECTORS, clusters=120, log_bias=bias, sketch=request.param != "biased")
    prior = np.zeros(N) if bias is None else bias.astype(np.float64)
    if request.param == "snapshot":
        live = softindex.open(tmp_path_factory.mktemp("live") / "one", create=index, compaction="manual")
        gone = np.random.default_rng(4).choice(N, 2000, replace=False)
        live.remove(gone)
        prior[gone] = -np.inf
        return live.snapshot(), prior
    return index, prior


def softmax(prior, allowed, query, temperature):
    """Log-probability of every id, in float64."""
    logits = VECTORS.astype(np.float64) @ query.astype(np.float64) / temperature + prior
    logits[~np.isin(np.arange(N), allowed)] = -np.inf
    return logits - np.logaddexp.reduce(logits)


def pick(index, share, seed=5):
    return np.random.default_rng(seed).choice(index.ids, max(1, round(share * len(index))), replace=False)


@pytest.mark.parametrize("share", SHARES)
def test_exact_methods_draw_from_the_softmax_over_the_allowed_items(made, share):
    index, prior = made
    allowed = pick(index, SHARES[share])
    wanted = np.unique(np.concatenate([allowed[:50], index.ids[:50]]))
    for temperature in (0.05, 1.0):
        truth = np.array([softmax(prior, allowed, query, temperature) for query in QUERIES])
        for method in ("exact", "certified"):
            asked = {"temperature": temperature, "method": method, "allow": allowed}
            np.testing.assert_allclose(index.log_prob(QUERIES, wanted, **asked), truth[:, wanted], atol=2e-4)
            draws = index.sample(QUERIES, 20, seed=1, **asked)
            assert np.isin(draws.ids, allowed).all()
            np.testing.assert_allclose(draws.log_prob, np.take_along_axis(truth, draws.ids, axis=1), atol=2e-4)
            assert (draws.error == 0).all()
            found = index.log_partition(QUERIES, **asked)
            logits = VECTORS.astype(np.float64) @ QUERIES.T.astype(np.float64) / temperature + prior[:, None]
            log_z = np.logaddexp.reduce(logits[np.unique(allowed)], axis=0)
            assert ((found.low <= log_z) & (log_z <= found.high)).all()


@pytest.mark.parametrize("share", SHARES)
def test_the_default_is_a_law_over_the_allowed_items_and_within_its_stated_error(made, share):
    index, prior = made
    allowed = pick(index, SHARES[share])
    asked = {"temperature": 0.1, "allow": allowed}
    law = np.exp(index.log_prob(QUERIES, index.ids, **asked))
    np.testing.assert_allclose(law.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(law[:, ~np.isin(index.ids, allowed)], 0.0)
    draws = index.sample(QUERIES, 50, seed=1, **asked)
    assert np.isin(draws.ids, allowed).all()
    again = np.array([index.log_prob(q, row, **asked) for q, row in zip(QUERIES, draws.ids, strict=True)])
    np.testing.assert_allclose(draws.log_prob, again, atol=1e-9)
    truth = np.array([np.exp(softmax(prior, allowed, query, 0.1))[index.ids] for query in QUERIES])
    assert (0.5 * np.abs(law - truth).sum(axis=1) <= 2 * draws.error + 0.01).all()
    if share != "nearly all":
        # Short lists are scored, and half of the items is scanned: either is exact.
        assert (draws.error == 0).all()


@pytest.mark.parametrize("share", SHARES)
def test_the_best_of_the_allowed_are_those_of_brute_force(made, share):
    index, prior = made
    allowed = np.unique(pick(index, SHARES[share]))
    k = min(7, len(allowed))
    scores = VECTORS[allowed].astype(np.float64) @ QUERIES.T.astype(np.float64) + 0.3 * prior[allowed, None]
    best = index.top_k(QUERIES, k, temperature=0.3, allow=allowed)
    np.testing.assert_array_equal(best.ids, allowed[np.argsort(-scores.T, axis=1)[:, :k]])
    np.testing.assert_allclose(best.scores, -np.sort(-scores.T, axis=1)[:, :k], atol=1e-5)
    assert best.proven.all()
    assert (best.gap == 0).all()
    if share in ("one", "few", "listed"):
        assert (best.items_scored == len(allowed)).all()


def test_a_mask_is_the_ids_that_it_selects(made):
    index, _ = made
    for share in SHARES.values():
        mask = np.isin(index.ids, pick(index, share))
        for word, ids in (("allow", index.ids[mask]), ("exclude", index.ids[~mask])):
            same = mask if word == "allow" else ~mask
            calls = [index.sample(QUERIES, 9, temperature=0.1, seed=3, **{word: one}) for one in (ids, same)]
            np.testing.assert_array_equal(calls[0].ids, calls[1].ids)
            np.testing.assert_array_equal(calls[0].log_prob, calls[1].log_prob)
    rows = np.random.default_rng(1).random((5, len(index))) < 0.02
    draws = index.sample(QUERIES, 9, temperature=0.1, seed=3, allow=rows)
    lists = index.sample(QUERIES, 9, temperature=0.1, seed=3, allow=[index.ids[row] for row in rows])
    np.testing.assert_array_equal(draws.ids, lists.ids)


@pytest.mark.parametrize("method", ["exact", "certified", "2ls", "sd-2ls", "top-k"])
@pytest.mark.parametrize("options", [{}, {"replace": False}, {"top_p": 0.9}])
def test_rows_of_any_length_batches_and_threads_change_nothing(made, method, options):
    index, _ = made
    rng = np.random.default_rng(7)
    batch = np.concatenate([QUERIES, make(3, 4)])
    sizes = (5, 40, 3000, 4000, 12_000, 20_000, len(index) - 10, 1000)
    allow = [rng.choice(index.ids, size, replace=False) for size in sizes] + [None]
    exclude = [rng.choice(index.ids, size, replace=False) for size in (0, 3, 9000, 1, 9, 2, 40, 7, 14_000)]
    exclude[0] = None
    asked = {"temperature": 0.2, "method": method, "seed": 9, **options}
    whole = index.sample(batch, 3, allow=allow, exclude=exclude, threads=1, **asked)
    threaded = index.sample(batch, 3, allow=allow, exclude=exclude, threads=3, **asked)
    np.testing.assert_array_equal(whole.ids, threaded.ids)
    np.testing.assert_array_equal(whole.log_prob, threaded.log_prob)
    for row, query in enumerate(batch):
        alone = index.sample(query, 3, allow=allow[row], exclude=exclude[row], **asked)
        np.testing.assert_array_equal(alone.ids, whole.ids[row])
        np.testing.assert_array_equal(alone.log_prob, whole.log_prob[row])
        assert alone.error == whole.error[row] or method == "2ls"
        assert allow[row] is None or np.isin(alone.ids, allow[row]).all()
        assert exclude[row] is None or not np.isin(alone.ids, exclude[row]).any()
    best = index.top_k(batch, 4, allow=[one if one is None or len(one) > 5 else None for one in allow], exclude=exclude)
    for row, query in enumerate(batch[1:], 1):
        alone = index.top_k(query, 4, allow=allow[row], exclude=exclude[row])
        np.testing.assert_array_equal(alone.ids, best.ids[row])


def test_heavy_exclusions_are_scanned_and_exact(made):
    index, prior = made
    excluded = pick(index, 0.5)
    left = np.setdiff1d(index.ids, excluded)
    draws = index.sample(QUERIES, 3, temperature=0.1, exclude=excluded, seed=0)
    exact = index.sample(QUERIES, 3, temperature=0.1, exclude=excluded, seed=0, method="exact")
    np.testing.assert_array_equal(draws.ids, exact.ids)
    np.testing.assert_array_equal(draws.log_prob, exact.log_prob)
    assert (draws.error == 0).all()
    law = index.log_prob(QUERIES[0], left, temperature=0.1, exclude=excluded)
    np.testing.assert_allclose(law, softmax(prior, left, QUERIES[0], 0.1)[left], atol=2e-4)


@pytest.mark.parametrize("options", [{}, {"top_p": 0.8}, {"method": "top-k", "k": 20}])
def test_draws_from_a_short_list_fit_its_law(options):
    """Chi-square on 40,000 draws; false alarm about 3e-7 a case."""
    index = softindex.build(VECTORS, clusters=120)
    allowed = np.sort(pick(index, 0.002))
    asked = {"temperature": 0.5, "allow": allowed, **options}
    law = index.log_prob(QUERIES[0], allowed, **asked)
    assert np.exp(law).sum() == pytest.approx(1, abs=1e-9)
    draws = index.sample(QUERIES[0], 40_000, seed=1, **asked)
    counts = np.bincount(np.searchsorted(allowed, draws.ids), minlength=len(allowed))
    assert chi_square_score(counts, np.exp(law)) < 5


def test_the_best_of_a_short_list_state_what_they_leave_out():
    index = softindex.build(VECTORS, clusters=120)
    allowed = pick(index, 0.01)
    whole = np.exp(index.log_prob(QUERIES, allowed, temperature=0.1, allow=allowed))
    draws = index.sample(QUERIES, 5, temperature=0.1, allow=allowed, method="top-k", k=30, seed=0)
    np.testing.assert_allclose(draws.error, 1 - np.sort(whole, axis=1)[:, -30:].sum(axis=1), atol=1e-6)
    everything = index.sample(QUERIES, 5, temperature=0.1, allow=allowed, method="top-k", k=300, seed=0)
    assert (everything.error == 0).all()


def test_slates_of_a_short_list_are_permutations_of_it(made):
    index, _ = made
    allowed = pick(index, 0.001)
    slate = index.sample(QUERIES, len(allowed), temperature=0.5, replace=False, allow=allowed, seed=2)
    np.testing.assert_array_equal(np.sort(slate.ids, axis=1), np.tile(np.sort(allowed), (5, 1)))
    step = index.log_prob(QUERIES[0], slate.ids[0, 1:2], temperature=0.5, allow=allowed, exclude=slate.ids[0, :1])
    np.testing.assert_allclose(step, slate.log_prob[0, 1], atol=1e-5)


def test_bad_choices_are_refused_in_a_sentence(made):
    index, _ = made
    n = len(index)
    for options, match in (
        ({"allow": []}, "allow leaves nothing to draw for query 0"),
        ({"allow": [7], "exclude": [7], "unknown": "ignore"}, "allow and exclude leave nothing"),
        ({"allow": np.zeros(n, bool)}, "allow leaves nothing"),
        ({"exclude": np.ones(n, bool)}, "exclude leaves nothing"),
        ({"allow": np.ones(n - 1, bool)}, "allow is a mask of shape"),
        ({"exclude": np.ones((4, n), bool)}, "exclude is a mask of shape"),
        ({"allow": [[1], [2]]}, "allow has 2 entries for 5 queries"),
        ({"allow": 7}, "allow is neither"),
        ({"allow": ["a"]}, "string ids"),
        ({"allow": index.ids[:3], "replace": False}, "n is 4 but there are 3 items"),
        ({"allow": [N + 5], "unknown": "error"}, "in allow is not in this index"),
        ({"allow": index.ids[:3], "unknown": "forget"}, "unknown"),
    ):
        with pytest.raises(softindex.InputError, match=match):
            index.sample(QUERIES, 4, temperature=1.0, **options)
    with pytest.raises(softindex.InputError, match="k is 4 but allow leaves 3 items for query 0"):
        index.top_k(QUERIES, 4, allow=index.ids[:3])
    draws = index.sample(QUERIES, 4, temperature=1.0, allow=[int(index.ids[0]), N + 5], unknown="ignore")
    assert (draws.ids == index.ids[0]).all()
    everything = index.sample(QUERIES, 4, temperature=1.0, allow=[None] * 5, seed=1)
    np.testing.assert_array_equal(everything.ids, index.sample(QUERIES, 4, temperature=1.0, seed=1).ids)
