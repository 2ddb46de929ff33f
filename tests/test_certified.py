"""Certified draws are draws from the softmax, and what is called proven holds, for whatever items and queries."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import softindex
from inside import look_inside
from made_indexes import check_bounds, directions, log_sum, made, normal, true_logits
from softindex.errors import InputError, MethodError
from softindex.kernels import Request
from softindex.testing import chi_square_score

SAVED = Path(__file__).parent / "saved" / "v1"
FORMS = ("none", 1, 8, "full")


@cache
def groups(codes=False, biased=False, n=900, d=8, clusters=18, form="full"):
    """Groups of unit vectors, and a query among some of them."""
    rng = np.random.default_rng(11)
    centres = directions(rng, clusters, d)
    items = centres[rng.integers(clusters, size=n)] + 0.35 * rng.standard_normal((n, d))
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    bias = rng.standard_normal(n).astype(np.float32) if biased else None
    index = softindex.build(
        items.astype(np.float32), clusters=clusters, codes=codes, log_bias=bias, dispersion=form, threads=1
    )
    query = centres[:3].sum(axis=0)
    return index, (query / np.linalg.norm(query)).astype(np.float32)


def exact_law(index, query, temperature):
    return np.exp(index.log_prob(query, np.arange(len(index)), temperature=temperature, method="exact", threads=1))


def check_law(index, query, temperature, n, copies):
    """Draws fit the softmax, and are made from less than all items, after some clusters were rejected.

    A score above 5 has a chance of 3e-7.
    """
    batch = np.tile(query, (copies, 1))
    drawn = index.sample(batch, n, temperature=temperature, method="certified", seed=17, threads=1)
    law = exact_law(index, query, temperature)
    assert (law > 5 / drawn.ids.size).sum() >= 5
    assert chi_square_score(np.bincount(drawn.ids.ravel(), minlength=len(index)), law) < 5
    assert drawn.items_scored.max() <= len(index)
    if n == 1:
        sizes = np.empty(len(index), np.int64)
        sizes[index.ids] = np.repeat(index.sizes, index.sizes)
        rejected = drawn.items_scored > sizes[drawn.ids[:, 0]]
        assert drawn.items_scored.mean() < 0.9 * len(index)
        assert rejected.mean() > 0.05
    return drawn


@pytest.mark.parametrize("form", ["none", "full"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("temperature", [0.1, 0.3])
def test_draws_fit_the_softmax_though_clusters_are_rejected(temperature, codes, biased, form):
    index, query = groups(codes, biased, form=form)
    check_law(index, query, temperature, 1, 15_000)
    check_law(index, query, temperature, 50, 300)


@cache
def near_ties(codes):
    """Clusters in a cap about the query, where no score is far above its mean's, and as many on the other side."""
    rng = np.random.default_rng(13)
    around = directions(rng, 240, 23) * rng.uniform(0.05, 0.2, size=(240, 1))
    ahead = np.sqrt(1 - (around**2).sum(axis=1)) * np.where(np.arange(240) < 120, 1, -1)
    return made(np.column_stack([ahead, around]), [20] * 12, None, "none", codes)


@pytest.mark.parametrize("error", [0.1, 0.3, 0.69, 0.71, 2.0])
def test_draws_fit_the_softmax_where_codes_are_coarse(error):
    # Codes off by this much over the temperature: proposals are rejected item by item, or floats serve instead.
    index, query = near_ties(True), np.eye(24, dtype=np.float32)[0]
    temperature = float(np.median(look_inside(index).codes.errors)) / error
    drawn = check_law(index, query, temperature, 1, 15_000)
    check_law(index, query, temperature, 50, 300)
    plain = check_law(near_ties(False), query, temperature, 1, 15_000)
    # The same law, by another way if codes took part.
    assert (error > 1) == bool((drawn.ids == plain.ids).all())


def test_draws_of_one_query_do_not_hang_together():
    # Pairs of consecutive draws, which share scans, fit the product of the laws; a chance of 3e-7.
    index, query = groups(codes=True)
    drawn = index.sample(np.tile(query, (8000, 1)), 2, temperature=0.05, method="certified", seed=3, threads=1).ids
    law, n = exact_law(index, query, 0.05), len(index)
    assert chi_square_score(np.bincount(drawn[:, 0] * n + drawn[:, 1], minlength=n * n), np.outer(law, law).ravel()) < 5


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("temperature", [1e-3, 0.05, 0.2, 1.0, 1e3])
def test_log_probabilities_are_between_their_bounds(codes, biased, temperature):
    index, _ = groups(codes, biased)
    queries = normal(20, index.dim, seed=8).astype(np.float32)
    widths = []
    for n in (1, 50):
        drawn = index.sample(queries, n, temperature=temperature, method="certified", seed=1, threads=1)
        exact = index.log_prob(queries, drawn.ids, temperature=temperature, method="exact", threads=1)
        assert (drawn.low <= exact).all()
        assert (exact <= drawn.high).all()
        assert (drawn.low <= drawn.log_prob).all()
        assert (drawn.log_prob <= drawn.high).all()
        assert (drawn.high <= 0).all()
        for i, query in enumerate(queries):
            logits = true_logits(index, query, temperature)
            places = np.argsort(index.ids)[drawn.ids[i]]
            true = logits[places] - log_sum(logits)
            assert (drawn.low[i] <= true).all()
            assert (true <= drawn.high[i] + 1e-18).all()
        widths.append((drawn.high - drawn.low)[:, 0])
    # A scan knows a mass to within a few times 1e-4, which may be less well than a bound does.
    assert (widths[1] <= widths[0] + 1e-3).all()
    assert widths[1].mean() <= widths[0].mean() + 2e-4


def bracket(index, queries, temperature, width, confidence=1.0, seed=0):
    values, scored = np.empty((3, len(queries))), np.empty(len(queries), np.int64)
    law = index._law("certified", None, None)[0]
    request = Request(queries, law, temperature, seed=seed)
    request.bound(width, confidence)
    index._engine.log_partition(request, values, scored)
    return *values, scored


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 0.5, 100.0])
def test_log_partition_is_between_its_bounds(codes, biased, temperature):
    index, _ = groups(codes, biased)
    queries = normal(12, index.dim, seed=9).astype(np.float32)
    true = np.array([log_sum(true_logits(index, query, temperature)) for query in queries])
    _, low, high, scored = bracket(index, queries, temperature, 1e-12)
    assert (scored == len(index)).all()
    finest = high - low
    for width in (1e-12, 3e-4, 1e-3, 0.01, 0.1, 1.0, 100.0):
        value, low, high, scored = bracket(index, queries, temperature, width)
        assert (low <= true).all()
        assert (true <= high).all()
        assert (low <= value).all()
        assert (value <= high).all()
        assert (high - low <= np.maximum(width, 1.001 * finest)).all()
        assert (scored <= len(index)).all()
        assert ((high - low <= width) | (scored == len(index))).all()
        estimate = index.log_partition(queries, temperature=temperature, method="certified", width=width)
        np.testing.assert_array_equal([estimate.value, estimate.low, estimate.high], [value, low, high])
    assert temperature < 0.1 or (scored == 0).all()


def test_codes_do_not_keep_log_partition_from_its_width():
    # Far from zero and near to each other: codes lose little, but the rounding of two products is more than that.
    rng = np.random.default_rng(1)
    centres = 100 * directions(rng, 20, 16)
    items = np.repeat(centres, 50, axis=0) + 1e-3 * rng.standard_normal((1000, 16))
    query = (0.01 * centres[0] + 0.1 * directions(rng, 1, 16)[0]).astype(np.float32)
    for codes in (False, True):
        found = made(items, [50] * 20, codes=codes).log_partition(
            query, temperature=0.1, method="certified", width=2e-3
        )
        assert found.high - found.low <= 2e-3


@cache
def large():
    """Too many items for bounds alone: an estimate with confidence has to draw."""
    rng = np.random.default_rng(21)
    items = rng.standard_normal((40_000, 6)).astype(np.float32)
    return softindex.build(items, clusters=400, threads=1), rng.standard_normal((400, 6)).astype(np.float32)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_bounds_with_confidence_hold_as_often_as_they_say(confidence):
    index, queries = large()
    temperature = 2.0
    logits = look_inside(index).vectors.astype(np.float64) @ queries.T.astype(np.float64) / temperature
    true = np.log(np.exp(logits - logits.max(axis=0)).sum(axis=0)) + logits.max(axis=0)
    value, low, high, scored = bracket(index, queries, temperature, 1e-3, confidence, seed=5)
    assert (low <= value).all()
    assert (value <= high).all()
    # It did draw: another seed gives other bounds, narrower than those proven of all that was scanned, for most.
    other = bracket(index, queries, temperature, 1e-3, confidence, seed=6)
    drew = (other[1] != low) | (other[2] != high)
    assert drew.mean() > 0.9
    assert (scored < len(index)).mean() > 0.9
    surer = bracket(index, queries, temperature, 1e-3, 1 - 1e-12, seed=5)
    assert ((high - low)[drew] < (surer[2] - surer[1])[drew]).mean() > 0.9
    covered = ((low <= true) & (true <= high)).sum() + ((other[1] <= true) & (true <= other[2])).sum()
    # Five standard deviations of a binomial: a chance below 1e-6.
    trials = 2 * len(queries)
    assert covered >= trials * confidence - 5 * (trials * confidence * (1 - confidence)) ** 0.5


def test_bounds_with_confidence_follow_the_seed():
    index, queries = large()
    few = queries[:9]
    first = index.log_partition(few, temperature=2.0, method="certified", confidence=0.9, seed=4, width=1e-3)
    for threads in (1, 2):
        again = index.log_partition(
            few[::-1], temperature=2.0, method="certified", confidence=0.9, seed=4, width=1e-3, threads=threads
        )
        for field in ("value", "low", "high"):
            np.testing.assert_array_equal(getattr(first, field), getattr(again, field)[::-1])


@pytest.mark.parametrize("confidence", [0, 0.0, 1, 1.0, -1.0, float("nan"), "x", True, 2, 2.0, [0.5]])
def test_confidence_is_a_number_between_0_and_1(confidence):
    index, query = groups()
    with pytest.raises(InputError, match="confidence is"):
        index.log_partition(query, temperature=1.0, method="certified", confidence=confidence)


@pytest.mark.parametrize("method", ["exact", "2ls", "s-2ls", "hierarchical", "sd-hierarchical", "top-k"])
def test_confidence_needs_bounds(method):
    index = softindex.build(normal(300, 4).astype(np.float32), tree=True, clusters=5, threads=1)
    with pytest.raises(MethodError):
        index.log_partition(np.ones(4, np.float32), temperature=1.0, method=method, confidence=0.9)


@pytest.mark.parametrize("codes", [False, True])
def test_draws_and_bounds_do_not_depend_on_the_batch_or_on_threads(codes, tmp_path):
    index, _ = groups(codes, True)
    index.save(tmp_path / "index")
    queries = normal(41, index.dim, seed=4).astype(np.float32)

    def ask(index, queries, threads=1):
        drawn = index.sample(queries, 7, temperature=0.1, method="certified", seed=2, threads=threads)
        estimate = index.log_partition(queries, temperature=0.1, method="certified", width=0.05, threads=threads)
        return [
            drawn.ids,
            drawn.log_prob,
            drawn.low,
            drawn.high,
            drawn.items_scored,
            estimate.value,
            estimate.low,
            estimate.high,
        ]

    whole = ask(index, queries)
    alone = [np.array(part) for part in zip(*(ask(index, query) for query in queries), strict=True)]
    others = [
        ask(index, queries, threads=2),
        [part[::-1] for part in ask(index, queries[::-1])],
        alone,
        ask(softindex.load(tmp_path / "index"), queries),
        ask(softindex.load(tmp_path / "index", mmap=False), queries),
    ]
    for other in others:
        for mine, theirs in zip(whole, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", sorted(path.stem for path in SAVED.glob("*.json")))
def test_an_index_without_cosines_is_certified_too(name):
    index = softindex.load(SAVED / name)
    assert look_inside(index).moments.min_cosine is None
    queries = normal(6, index.dim, seed=6).astype(np.float32)
    for temperature in (0.01, 0.1, 1.0, 100.0):
        for query in queries:
            check_bounds(index, query, temperature)
        drawn = index.sample(queries, 20, temperature=temperature, method="certified", seed=0)
        exact = index.log_prob(queries, drawn.ids, temperature=temperature, method="exact")
        assert (drawn.low <= exact).all()
        assert (exact <= drawn.high).all()


@pytest.mark.parametrize("codes", [False, True])
@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e-3, 0.03, 1e30])
def test_useless_bounds_cost_no_more_than_a_scan(codes, temperature):
    items = normal(3000, 24, seed=7).astype(np.float32)
    index = softindex.build(items, clusters=50, codes=codes, threads=1)
    queries = normal(30, 24, seed=8).astype(np.float32)
    for n in (1, 200):
        drawn = index.sample(queries, n, temperature=temperature, method="certified", seed=0, threads=1)
        assert (drawn.items_scored <= len(index)).all()
        assert (drawn.items_scored > 0).all()
    best = index.top_k(queries, 1)
    if temperature <= 1e-6:
        assert (drawn.ids == best.ids).all()


def test_many_clusters_of_few_items_are_scanned_and_bounded():
    # Where bounds would cost more than they save, draws are those of "exact" with bounds for its rounding.
    items = normal(10_001, 4, seed=2).astype(np.float32)
    index = softindex.build(items, clusters=5000, threads=1)
    queries = normal(5, 4, seed=3).astype(np.float32)
    drawn = index.sample(queries, 30, temperature=0.2, method="certified", seed=0, threads=1)
    same = index.sample(queries, 30, temperature=0.2, method="exact", seed=0, threads=1)
    np.testing.assert_array_equal(drawn.ids, same.ids)
    assert (drawn.low < same.log_prob).all()
    assert (same.log_prob <= drawn.high).all()
    for i, query in enumerate(queries):
        logits = true_logits(index, query, 0.2)
        true = logits[np.argsort(index.ids)[drawn.ids[i]]] - log_sum(logits)
        assert (drawn.low[i] <= true).all()
        assert (true <= drawn.high[i]).all()


def test_a_width_below_float32_ends_in_a_full_scan_and_the_narrowest_bounds_there_are():
    vectors = np.random.default_rng(0).standard_normal((2000, 12)).astype(np.float32)
    index = softindex.build(vectors)
    found = index.log_partition(vectors[:20], temperature=1.0, method="certified", width=1e-9)
    logits = vectors[:20].astype(np.float64) @ vectors.T.astype(np.float64)
    truth = np.logaddexp.reduce(logits, axis=1)
    assert ((found.low <= truth) & (truth <= found.high)).all()
    # The docstring names this limit.
    assert (found.high - found.low < 1e-3).all()
    assert (found.high - found.low > 1.9e-4).all()
    assert "2e-4" in softindex.Index.log_partition.__doc__
