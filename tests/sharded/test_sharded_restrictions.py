"""Slates, exclusions and allowed items over shards, and what is refused."""

import numpy as np
import pytest
from reference import inverse_cdf, slate, softmax_law
from shards import COUNTS, N, built, catalogue, sharded, unsharded

import softindex
from softindex.sharded.merging import merge_slates, pick_certainly, pick_shards
from softindex.sharded.streams import _philox, uniforms
from softindex.testing.statistics import chi_square_score

IDS = np.arange(N)
VECTORS, LOG_BIAS, QUERIES = catalogue()
T = 0.8


@pytest.mark.parametrize("count", COUNTS)
def test_each_step_of_a_slate_is_the_law_of_what_is_left(count):
    index, one = sharded(count, biased=True), unsharded(biased=True)
    asked = {"temperature": T, "method": "exact"}
    draws = index.sample(QUERIES, 40, replace=False, seed=1, **asked)
    for row, query in enumerate(QUERIES):
        assert len(set(draws.ids[row].tolist())) == 40
        for step in (0, 1, 7, 39):
            left = one.log_prob(query, draws.ids[row, step], exclude=draws.ids[row, :step], **asked)
            assert draws.log_prob[row, step] == pytest.approx(float(left), abs=2e-5)


@pytest.mark.parametrize("count", COUNTS)
def test_the_second_item_of_a_slate_fits_its_law(count):
    """Chi-square on 40,000 slates of two; false alarm about 3e-7 a case."""
    index = sharded(count)
    draws = index.sample(
        np.repeat(QUERIES[:1], 40_000, axis=0), 2, temperature=T, method="exact", replace=False, seed=2
    )
    p = np.exp(softmax_law(VECTORS, QUERIES[0], T))
    # Summed over the first item: sum over j != i of p_j p_i / (1 - p_j).
    odds = p / (1 - p)
    second = p * (odds.sum() - odds)
    assert chi_square_score(np.bincount(draws.ids[:, 1], minlength=N), second) < 5
    assert chi_square_score(np.bincount(draws.ids[:, 0], minlength=N), p) < 5


def test_a_slate_of_everything_is_drawn_from_shards_of_any_size():
    index = sharded(8)
    draws = index.sample(QUERIES[:2], N, temperature=0.05, replace=False, method="exact", seed=0)
    assert np.isfinite(draws.log_prob).all()
    np.testing.assert_array_equal(np.sort(draws.ids, axis=1), np.tile(IDS, (2, 1)))


def test_an_item_that_has_nearly_all_mass_leaves_the_others_their_proportions():
    """The mass that is left after it cannot be found by subtraction: 1 - (1 - 1e-30) is 0."""
    rng = np.random.default_rng(0)
    vectors = 0.1 * rng.standard_normal((60, 4)).astype(np.float32)
    vectors[[3, 40], 0] = 70.0, 69.0
    parts = [IDS[:30], IDS[30:60]]
    index = softindex.sharded.join([softindex.build(vectors[rows], ids=rows, threads=1) for rows in parts])
    query = np.array([1.0, 0, 0, 0], np.float32)
    draws = index.sample(query, 30, temperature=1.0, method="exact", replace=False, seed=0)
    assert set(draws.ids[:2].tolist()) == {3, 40}
    left = np.ones(60, bool)
    for step, item in enumerate(draws.ids):
        law = softmax_law(vectors[left], query, 1.0)
        assert draws.log_prob[step] == pytest.approx(law[np.flatnonzero(left) == item][0], abs=1e-4)
        left[item] = False


@pytest.mark.parametrize("method", ["exact", "certified", "sd-2ls", "top-k"])
@pytest.mark.parametrize("count", COUNTS)
def test_excluded_items_leave_the_others_their_proportions(count, method):
    index, one = sharded(count), unsharded()
    gone = np.argsort(-(VECTORS @ QUERIES[0]))[:25]
    rows = [gone, None, [5, 6], gone[:3], [], IDS[:900]]
    asked = {"temperature": T, "method": method, "exclude": rows}
    law = index.log_prob(QUERIES, IDS, **asked)
    np.testing.assert_allclose(np.exp(law).sum(axis=1), 1.0, atol=1e-4)
    if method != "sd-2ls":
        np.testing.assert_allclose(law, one.log_prob(QUERIES, IDS, **asked), atol=1e-4)
    draws = index.sample(QUERIES, 300, seed=0, **asked)
    for row, excluded in enumerate(rows):
        assert not np.isin(draws.ids[row], [] if excluded is None else excluded).any()
    np.testing.assert_allclose(draws.log_prob, np.take_along_axis(law, draws.ids, 1), atol=2e-4)
    best = [each.top_k(QUERIES, 9, exclude=rows) for each in (index, one)]
    np.testing.assert_array_equal(best[0].ids, best[1].ids)
    assert best[0].proven.all()


@pytest.mark.parametrize("count", COUNTS)
def test_items_that_only_some_shards_hold_may_be_all_that_is_allowed(count):
    index, one = sharded(count), unsharded()
    first = built(count)[0].ids
    rows = [first[:4], [7], None, first[:40].tolist(), IDS[::3], first[:1]]
    for method in ("exact", "sd-2ls"):
        asked = {"temperature": T, "method": method, "allow": rows}
        law, truth = (each.log_prob(QUERIES, IDS, **asked) for each in (index, one))
        np.testing.assert_array_equal(np.isneginf(law), np.isneginf(truth))
        # A list that is not short may be estimated, and is in one index but not in every shard of it.
        listed = [0, 1, 5] if method == "sd-2ls" else [0, 1, 2, 3, 4, 5]
        np.testing.assert_allclose(law[listed], truth[listed], atol=1e-4)
        draws = index.sample(QUERIES, 100, seed=0, **asked)
        assert np.isfinite(np.take_along_axis(law, draws.ids, 1)).all()
    slates = index.sample(
        QUERIES[[0, 3, 4]], 4, temperature=T, allow=[rows[0], rows[3], rows[4]], replace=False, seed=1
    )
    assert set(slates.ids[0].tolist()) == set(first[:4].tolist())
    best = index.top_k(QUERIES[[0, 3]], 4, allow=[rows[0], rows[3]])
    np.testing.assert_array_equal(best.ids, one.top_k(QUERIES[[0, 3]], 4, allow=[rows[0], rows[3]]).ids)


def test_slates_of_few_allowed_items_fit_their_law():
    """Chi-square on 20,000 slates of two of five items that lie in different shards; false alarm about 3e-7."""
    index = sharded(8)
    allowed = np.array([shard.ids[0] for shard in built(8)[:5]])
    repeated = np.repeat(QUERIES[:1], 20_000, axis=0)
    draws = index.sample(repeated, 2, temperature=3.0, method="exact", allow=allowed, replace=False, seed=2)
    p = np.exp(softmax_law(VECTORS[allowed], QUERIES[0], 3.0))
    odds = p / (1 - p)
    place = np.searchsorted(np.sort(allowed), draws.ids)
    p, odds = p[np.argsort(allowed)], odds[np.argsort(allowed)]
    assert chi_square_score(np.bincount(place[:, 1], minlength=5), p * (odds.sum() - odds)) < 5


def test_merged_slates_are_those_of_the_reference():
    rng = np.random.default_rng(0)
    log_z = rng.standard_normal(3)
    slates = [np.log(rng.dirichlet(np.ones(size))) for size in (4, 2, 6)]
    # Steps of a slate of everything: each item's weight over what is left.
    steps = [law - np.log(np.cumsum(np.exp(law[::-1]))[::-1]) for law in slates]
    left = [z + np.log(np.cumsum(np.exp(law[::-1]))[::-1]) for z, law in zip(log_z, slates, strict=True)]
    uniform = rng.random((1, 12))
    picked, places, log_prob = merge_slates(
        [one[None] for one in left], [one[None] for one in steps], np.array([[4], [2], [6]]), uniform
    )
    expected = slate(log_z, [np.minimum(one, 0) for one in steps], uniform[0])
    np.testing.assert_array_equal(picked[0], expected[0])
    np.testing.assert_allclose(log_prob[0], expected[1], atol=1e-9)
    assert sorted(zip(picked[0], places[0], strict=True)) == [(s, j) for s in range(3) for j in range((4, 2, 6)[s])]


def test_shards_are_picked_by_the_inverse_of_their_distribution():
    rng = np.random.default_rng(1)
    log_z = 3 * rng.standard_normal((5, 40))
    log_z[2, ::3] = -np.inf
    uniform = rng.random((40, 9))
    picked = pick_shards(log_z, uniform)
    for row in range(40):
        assert picked[row].tolist() == [inverse_cdf(log_z[:, row], one) for one in uniform[row]]
    width = 0.2 * rng.random((5, 40))
    for low, high in ((log_z - width, log_z), (log_z, log_z + width), (log_z - width, log_z + width)):
        certain, sure = pick_certainly(low, high, uniform)
        np.testing.assert_array_equal(certain[sure], picked[sure])
        assert 0 < sure.sum() < 40


def test_the_random_numbers_are_those_of_philox():
    """Known answers of the published generator, and numbers that do not repeat between queries, draws and keys."""
    words = _philox(0, np.zeros(1, np.uint64), np.zeros(1, np.uint64))
    assert [f"{int(word[0]):08x}" for word in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    ones = np.full(1, 2**64 - 1, np.uint64)
    words = _philox(2**64 - 1, ones, ones)
    assert [f"{int(word[0]):08x}" for word in words] == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]
    found = np.concatenate([uniforms(key, np.arange(50, dtype=np.uint64), 50).ravel() for key in range(20)])
    assert len(np.unique(found)) == len(found)
    # 50,000 numbers: five standard deviations of the mean.
    assert abs(found.mean() - 0.5) < 5 * np.sqrt(1 / 12 / len(found))


def test_what_cannot_be_answered_is_refused_in_a_sentence():
    index = sharded(3)
    asked = {"temperature": T}
    with pytest.raises(softindex.UnknownIdError, match="id 1200 in exclude is not in this index"):
        index.sample(QUERIES, exclude=[3, N], **asked)
    with pytest.raises(softindex.UnknownIdError, match="id 1200 in allow"):
        index.top_k(QUERIES, 2, allow=[3, 4, N])
    with pytest.raises(softindex.UnknownIdError, match="id 1200 is not in this index"):
        index.log_prob(QUERIES, [N], **asked)
    assert np.isneginf(index.log_prob(QUERIES[0], [N], missing="-inf", **asked)).all()
    assert index.sample(QUERIES, exclude=[3, N], unknown="ignore", **asked).ids.shape == (6, 1)
    with pytest.raises(softindex.InputError, match="nothing to draw for query 2"):
        index.sample(QUERIES[:3], exclude=[[1], None, IDS], **asked)
    with pytest.raises(softindex.InputError, match="n is 3 but there are 2 items"):
        index.sample(QUERIES, 3, allow=[4, 5], replace=False, **asked)
    with pytest.raises(softindex.InputError, match="the nucleus of query 0 holds"):
        index.sample(QUERIES, 800, top_p=0.01, replace=False, **asked)
    with pytest.raises(softindex.InputError, match="pass ids"):
        index.sample(QUERIES, exclude=np.zeros(N, bool), **asked)
    with pytest.raises(softindex.MethodError, match="no log Z"):
        index.sample(QUERIES, method="hierarchical", **asked)
    with pytest.raises(softindex.InputError, match="temperature"):
        index.sample(QUERIES, temperature=0)
    with pytest.raises(softindex.InputError, match="dimensions"):
        index.sample(QUERIES[:, :4], **asked)
    with pytest.raises(softindex.InputError, match="k is 1201"):
        index.top_k(QUERIES, N + 1)
    with pytest.raises(softindex.InputError, match="same options"):
        softindex.sharded.join([built(2)[0], softindex.build(VECTORS[:50], dispersion="none", threads=1)])
    with pytest.raises(softindex.InputError, match="no shards"):
        softindex.sharded.join([])


def test_bounds_with_a_confidence_hold_together():
    index = sharded(3)
    found = index.log_partition(QUERIES, temperature=T, method="certified", confidence=0.9)
    exact = [np.logaddexp.reduce(VECTORS.astype(float) @ query / T) for query in QUERIES]
    assert found.guarantee == "bound"
    assert ((found.low <= exact) & (exact <= found.high)).all()


@pytest.mark.parametrize("method", ["exact", "top-k"])
@pytest.mark.parametrize("count", COUNTS)
def test_the_log_probability_of_slates_is_that_of_their_steps(count, method):
    index, one = sharded(count, biased=True), unsharded(biased=True)
    asked = {"temperature": T, "method": method, "replace": False, "exclude": [1, 2, 3]}
    draws = index.sample(QUERIES, 12, seed=3, **asked)
    np.testing.assert_allclose(index.log_prob(QUERIES, draws.ids, **asked), draws.log_prob, atol=1e-5)
    np.testing.assert_allclose(one.log_prob(QUERIES, draws.ids, **asked), draws.log_prob, atol=5e-5)
    repeated = index.log_prob(QUERIES[0], draws.ids[0, [0, 0, 1]], **asked)
    assert np.isneginf(repeated[1])
    np.testing.assert_allclose(repeated[[0, 2]], draws.log_prob[0, :2], atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"method": "exact"}, {"method": "certified"}, {"top_p": 0.8}, {"k": 20}])
def test_every_query_may_have_a_temperature_of_its_own(options):
    index, temperatures = sharded(3), np.array([0.1, 0.3, 0.5, 0.8, 2.0, 5.0])
    options = {**options, "method": "top-k"} if "k" in options else options
    for replace in (True, False):
        asked = {**options, "seed": 1, "replace": replace, "exclude": [[4], [3], [5, 6], [9], [8], [7]]}
        count = 1 if "top_p" in options and not replace else 8
        together = index.sample(QUERIES, count, temperature=temperatures, **asked)
        for row, query in enumerate(QUERIES):
            own = {**asked, "exclude": asked["exclude"][row]}
            alone = index.sample(query, count, temperature=float(temperatures[row]), **own)
            np.testing.assert_array_equal(together.ids[row], alone.ids)
            np.testing.assert_allclose(together.log_prob[row], alone.log_prob, atol=1e-9)
