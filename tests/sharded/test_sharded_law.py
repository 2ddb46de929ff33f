"""Shards have one law: that of a single index for the exact methods, and the stated one for those that estimate."""

import numpy as np
import pytest
from reference import nucleus, softmax_law, two_step_law
from shards import COUNTS, N, built, catalogue, sharded, unsharded

import softindex
from softindex.sharded import join
from softindex.testing.statistics import chi_square_score, total_variation

IDS = np.arange(N)
VECTORS, LOG_BIAS, QUERIES = catalogue()
T = 0.8


def counts(ids):
    return np.bincount(np.ravel(ids), minlength=N)


@pytest.mark.parametrize("how", ["uneven", "sorted"])
@pytest.mark.parametrize("method", ["exact", "certified"])
@pytest.mark.parametrize("count", COUNTS)
def test_exact_draws_fit_the_softmax_of_all_items(count, method, how):
    """Chi-square on 40,000 draws; false alarm about 3e-7 a case."""
    index = sharded(count, how=how)
    law = softmax_law(VECTORS, QUERIES[0], T)
    draws = index.sample(np.repeat(QUERIES[:1], 400, axis=0), 100, temperature=T, method=method, seed=5)
    assert chi_square_score(counts(draws.ids), np.exp(law)) < 5
    # Certified draws know log Z, and so log_prob, within proven bounds only.
    np.testing.assert_allclose(draws.log_prob, law[draws.ids], atol=1e-4 if method == "exact" else 0.05)
    assert (draws.error == 0).all()


@pytest.mark.parametrize("method", ["sd-2ls", "s-2ls"])
@pytest.mark.parametrize("count", COUNTS)
def test_draws_of_methods_that_estimate_fit_the_law_that_log_prob_reports(count, method):
    """Chi-square on 40,000 draws; false alarm about 3e-7 a case."""
    index = sharded(count)
    law = two_step_law(built(count), IDS, QUERIES[1], T, method=method)
    np.testing.assert_allclose(index.log_prob(QUERIES[1], IDS, temperature=T, method=method), law, atol=1e-9)
    assert np.exp(law).sum() == pytest.approx(1.0, abs=1e-5)
    draws = index.sample(np.repeat(QUERIES[1:2], 400, axis=0), 100, temperature=T, method=method, seed=6)
    np.testing.assert_allclose(draws.log_prob, law[draws.ids], atol=1e-9)
    assert chi_square_score(counts(draws.ids), np.exp(law)) < 5


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_log_z_and_log_prob_of_exact_are_those_of_one_index(count, biased):
    index, one = sharded(count, biased=biased), unsharded(biased)
    for temperature in (0.1, 1.0, 10.0):
        asked = {"temperature": temperature, "method": "exact"}
        found, truth = index.log_partition(QUERIES, **asked), one.log_partition(QUERIES, **asked)
        np.testing.assert_allclose(found.value, truth.value, atol=1e-6, rtol=0)
        assert found.guarantee == "proven"
        np.testing.assert_allclose(
            index.log_prob(QUERIES, IDS, **asked), one.log_prob(QUERIES, IDS, **asked), atol=2e-6
        )
        logits = QUERIES.astype(float) @ VECTORS.T.astype(float) / temperature + (LOG_BIAS if biased else 0.0)
        exact = np.logaddexp.reduce(logits, axis=1)
        assert ((found.low <= exact) & (exact <= found.high)).all()


@pytest.mark.parametrize("temperature", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("count", COUNTS)
def test_certified_stays_certified(count, temperature):
    index = sharded(count, biased=True)
    draws = index.sample(QUERIES, 200, temperature=temperature, method="certified", seed=1)
    law = np.stack([softmax_law(VECTORS, query, temperature, LOG_BIAS) for query in QUERIES])
    truth = np.take_along_axis(law, draws.ids, 1)
    assert ((draws.low <= truth) & (truth <= draws.high)).all()
    assert ((draws.low <= draws.log_prob) & (draws.log_prob <= draws.high)).all()
    bounds = index.log_partition(QUERIES, temperature=temperature, method="certified")
    exact = [np.logaddexp.reduce(VECTORS.astype(float) @ query / temperature + LOG_BIAS) for query in QUERIES]
    assert ((bounds.low <= exact) & (exact <= bounds.high)).all()
    assert (bounds.high - bounds.low < 0.04).all()


@pytest.mark.parametrize("count", COUNTS)
def test_certified_draws_come_from_the_shards_that_exact_ones_come_from(count):
    index, shards = sharded(count), built(count)
    owner = np.empty(N, int)
    for number, shard in enumerate(shards):
        owner[shard.ids] = number
    drawn = [
        index.sample(QUERIES, 300, temperature=0.5, method=method, seed=2).ids for method in ("exact", "certified")
    ]
    np.testing.assert_array_equal(owner[drawn[0]], owner[drawn[1]])


@pytest.mark.parametrize("count", COUNTS)
def test_the_best_items_are_those_of_one_index_and_proven(count):
    index, one = sharded(count, biased=True), unsharded(biased=True)
    for k in (1, 10, 60):
        found, truth = (each.top_k(QUERIES, k, temperature=T) for each in (index, one))
        np.testing.assert_array_equal(found.ids, truth.ids)
        np.testing.assert_array_equal(found.scores, truth.scores)
        assert found.proven.all()
        assert (found.gap == 0).all()
        assert (found.recall == 1).all()


def test_what_is_proven_of_a_partial_search_holds():
    index = sharded(3)
    truth = np.sort(QUERIES.astype(float) @ VECTORS.T.astype(float), axis=1)[:, ::-1]
    for probes in (1, 2, 5):
        found = index.top_k(QUERIES, 10, probes=probes)
        scores = found.scores.astype(float)
        # A proven item scores at least as much as the tenth best of all.
        assert (scores[found.proven] >= np.repeat(truth[:, 9:10], 10, axis=1)[found.proven] - 1e-5).all()
        assert (truth[:, 0] <= np.maximum(scores[:, 0], scores[:, -1] + found.gap) + 1e-5).all()


@pytest.mark.parametrize("top_p", [0.2, 0.7, 0.95])
@pytest.mark.parametrize("how", ["uneven", "sorted"])
@pytest.mark.parametrize("count", COUNTS)
def test_the_nucleus_is_that_of_all_items(count, how, top_p):
    """Chi-square on 20,000 draws; false alarm about 3e-7 a case."""
    index = sharded(count, how=how)
    law = softmax_law(VECTORS, QUERIES[2], T)
    kept = nucleus(law, top_p)
    part = index.log_prob(QUERIES[2], IDS, temperature=T, method="exact", top_p=top_p)
    assert set(np.flatnonzero(np.isfinite(part))) == set(kept)
    np.testing.assert_allclose(part[kept], law[kept] - np.log(np.exp(law[kept]).sum()), atol=1e-4)
    repeated = np.repeat(QUERIES[2:3], 200, axis=0)
    draws = index.sample(repeated, 100, temperature=T, method="exact", top_p=top_p, seed=3)
    assert chi_square_score(counts(draws.ids), np.exp(part)) < 5
    np.testing.assert_allclose(draws.log_prob, part[draws.ids], atol=1e-9)


@pytest.mark.parametrize("count", COUNTS)
def test_top_k_draws_are_from_the_softmax_of_the_k_best_of_all(count):
    """Chi-square on 20,000 draws; false alarm about 3e-7 a case."""
    index, one = sharded(count), unsharded()
    asked = {"temperature": T, "method": "top-k", "k": 30}
    law = one.log_prob(QUERIES[3], IDS, **asked)
    np.testing.assert_allclose(index.log_prob(QUERIES[3], IDS, **asked), law, atol=1e-5)
    draws = index.sample(np.repeat(QUERIES[3:4], 200, axis=0), 100, seed=8, **asked)
    assert chi_square_score(counts(draws.ids), np.exp(law)) < 5
    left_out = 1 - np.exp(softmax_law(VECTORS, QUERIES[3], T)[np.isfinite(law)]).sum()
    assert draws.error[0] == pytest.approx(left_out, abs=0.05)
    slates = index.sample(QUERIES, 30, replace=False, seed=8, **asked)
    assert all(len(set(row)) == 30 for row in slates.ids.tolist())


@pytest.mark.parametrize("count", COUNTS)
def test_one_shard_is_the_index_itself(count):
    shard = built(count)[0]
    index = join([shard])
    for method in ("exact", "certified", "sd-2ls"):
        asked = {"temperature": T, "method": method, "seed": 4}
        mine, own = index.sample(QUERIES, 7, **asked), shard.sample(QUERIES, 7, **asked)
        np.testing.assert_array_equal(mine.ids, own.ids)
        np.testing.assert_allclose(mine.log_prob, own.log_prob, atol=1e-12)
        np.testing.assert_array_equal(mine.error, own.error)
    mine, own = (one.sample(QUERIES, 7, temperature=T, replace=False, seed=4) for one in (index, shard))
    np.testing.assert_array_equal(mine.ids, own.ids)


@pytest.mark.parametrize("options", [{}, {"method": "certified"}, {"replace": False}, {"top_p": 0.9}])
def test_the_same_seed_gives_the_same_draws_whatever_the_batch_order_and_threads(options):
    index = sharded(3)
    batch = np.random.default_rng(0).standard_normal((19, VECTORS.shape[1])).astype(np.float32)
    asked = {"temperature": T, "seed": 7, **options}
    once = index.sample(batch, 3, **asked)
    order = np.random.default_rng(1).permutation(19)
    np.testing.assert_array_equal(index.sample(batch[order], 3, threads=2, **asked).ids, once.ids[order])
    np.testing.assert_array_equal(np.stack([index.sample(query, 3, **asked).ids for query in batch]), once.ids)
    np.testing.assert_array_equal(index.sample(batch, 6, **asked).ids[:, :3], once.ids)
    copies = index.sample(np.repeat(batch[:1], 30, axis=0), 1, **asked).ids
    assert len(np.unique(copies)) > 3


@pytest.mark.parametrize("how", ["uneven", "sorted"])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 3.0])
def test_the_stated_error_covers_the_shares_of_shards(how, temperature):
    index = sharded(8, how=how)
    batch = np.random.default_rng(9).standard_normal((60, VECTORS.shape[1])).astype(np.float32)
    stated = index.sample(batch, temperature=temperature, seed=0).error
    laws = index.log_prob(batch, IDS, temperature=temperature)
    measured = np.array(
        [total_variation(softmax_law(VECTORS, query, temperature), law) for query, law in zip(batch, laws, strict=True)]
    )
    assert np.mean(measured > 2 * stated + 0.01) <= 0.02


def test_snapshots_and_string_ids_can_be_shards(tmp_path):
    names = np.array([f"item {'x' * (row % 7)}{row}" for row in range(N)])
    parts = [IDS[:500], IDS[500:]]
    shards = [softindex.build(VECTORS[rows], ids=names[rows], threads=1) for rows in parts]
    index = join(shards)
    draws = index.sample(QUERIES, 50, temperature=T, method="exact", seed=0)
    assert set(draws.ids.ravel()) <= set(names)
    law = softmax_law(VECTORS, QUERIES[0], T)
    np.testing.assert_allclose(index.log_prob(QUERIES[0], names, temperature=T, method="exact"), law, atol=1e-4)
    np.testing.assert_array_equal(index.vectors(names[[3, 700, 4]]), VECTORS[[3, 700, 4]])
    with pytest.raises(softindex.InputError, match="in more than one shard"):
        join([shards[0], shards[0]])
