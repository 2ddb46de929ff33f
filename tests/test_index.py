"""The index as a user meets it: shapes, ids, extremes, and sentences for what is wrong."""

import copy
import os
import subprocess
import sys
import threading
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
from inside import look_inside
from softindex.kernels import reference
from softindex.laws import FLAT_METHODS, LAWS, TREE_METHODS
from softindex.testing import catalogues, queries


def vectors(n=400, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


@pytest.fixture(scope="module")
def index():
    return softindex.build(vectors())


def test_it_tells_its_size_and_shape(index):
    assert (len(index), index.dim, index.clusters) == (400, 12, 20)
    assert index.sizes.sum() == 400
    np.testing.assert_array_equal(np.sort(index.ids), np.arange(400))
    assert repr(index).startswith("<softindex.Index: 400 items, ")


def test_a_single_query_gives_results_without_a_batch_axis(index):
    query = vectors(1)[0]
    draws = index.sample(query, 5, temperature=0.5)
    assert draws.ids.shape == draws.log_prob.shape == (5,)
    assert np.ndim(draws.error) == np.ndim(draws.items_scored) == 0
    assert index.log_prob(query, [1, 2, 3], temperature=0.5).shape == (3,)
    assert index.log_prob(query, 7, temperature=0.5).shape == ()
    assert np.ndim(index.log_partition(query, temperature=0.5).value) == 0
    assert index.top_k(query, 4).ids.shape == (4,)


def test_a_batch_gives_a_row_per_query(index):
    batch = vectors(3)
    draws = index.sample(batch, 5, temperature=0.5)
    assert draws.ids.shape == draws.log_prob.shape == (3, 5)
    assert draws.error.shape == draws.items_scored.shape == (3,)
    assert index.log_prob(batch, [1, 2], temperature=0.5).shape == (3, 2)
    assert index.log_prob(batch, np.ones((3, 4), int), temperature=0.5).shape == (3, 4)
    assert index.log_partition(batch, temperature=0.5).value.shape == (3,)
    assert index.top_k(batch, 4).scores.shape == (3, 4)


def test_ids_shared_by_a_batch_mean_the_same_as_ids_given_for_each_query(index):
    batch = vectors(3)
    shared = index.log_prob(batch, [5, 9], temperature=0.5)
    np.testing.assert_array_equal(shared, index.log_prob(batch, [[5, 9]] * 3, temperature=0.5))


def test_ids_of_a_wrong_shape_are_refused(index):
    for ids in (np.zeros((2, 4), int), np.zeros((3, 1, 1), int)):
        with pytest.raises(softindex.InputError, match="expected"):
            index.log_prob(vectors(3), ids, temperature=1.0)


def test_no_ids_have_no_log_prob(index):
    assert index.log_prob(vectors(1)[0], [], temperature=1.0).shape == (0,)
    assert index.log_prob(vectors(2), [], temperature=1.0).shape == (2, 0)


def test_zero_and_minus_zero_are_the_same_query(index):
    plus, minus = np.zeros(12, np.float32), -np.zeros(12, np.float32)
    first, second = (index.sample(query, 20, temperature=1.0, seed=1).ids for query in (plus, minus))
    np.testing.assert_array_equal(first, second)


def test_more_draws_than_fit_into_memory_are_refused(index):
    for n in (2**61, 2**45):
        with pytest.raises(softindex.InputError, match="memory"):
            index.sample(vectors(1)[0], n, temperature=1.0)


def test_an_index_says_how_to_move_it_instead_of_being_pickled(index):
    with pytest.raises(TypeError, match="save"):
        copy.copy(index)


def test_parameters_are_the_same_after_loading(index, tmp_path):
    index.save(tmp_path / "index")
    assert softindex.load(tmp_path / "index").parameters == index.parameters


def test_an_unsigned_id_too_large_is_unknown_and_does_not_wrap():
    named = softindex.build(vectors(3), ids=[-5, 7, 9])
    with pytest.raises(softindex.UnknownIdError):
        named.log_prob(vectors(1)[0], np.array([2**64 - 5], np.uint64), temperature=1.0)


def test_a_fresh_seed_is_told_and_repeats_the_draws(index):
    first = index.sample(vectors(2), 20, temperature=1.0)
    again = index.sample(vectors(2), 20, temperature=1.0, seed=first.seed)
    np.testing.assert_array_equal(first.ids, again.ids)
    assert index.sample(vectors(2), 20, temperature=1.0).seed != first.seed


def test_items_scored_counts_each_scanned_item_once(index):
    assert index.sample(vectors(1)[0], 50, temperature=1.0, method="exact").items_scored == 400
    scored = index.sample(vectors(1)[0], 1, temperature=1.0, probes=0).items_scored
    assert scored in index.sizes


@pytest.mark.parametrize("kind", ["integers", "strings"])
def test_ids_are_the_callers_own(kind, tmp_path):
    data = vectors(50)
    ids = np.arange(50) * 1000 - 7 if kind == "integers" else [f"wörd {i}" for i in range(50)]
    named, plain = softindex.build(data, ids=ids), softindex.build(data)
    named.save(tmp_path / "named")
    for index in (named, softindex.load(tmp_path / "named")):
        draws = index.sample(data[:4], 6, temperature=0.5, seed=1)
        rows = plain.sample(data[:4], 6, temperature=0.5, seed=1)
        np.testing.assert_array_equal(draws.ids, np.asarray(ids)[rows.ids])
        np.testing.assert_array_equal(index.log_prob(data[:4], draws.ids, temperature=0.5), draws.log_prob)
        assert set(index.ids.tolist()) == set(np.asarray(ids).tolist())
        best = index.top_k(data[3] * 100, 1)
        assert best.ids[0] in np.asarray(ids)


def test_ids_the_index_does_not_hold_are_named():
    named = softindex.build(vectors(3), ids=["a", "b", "c"])
    with pytest.raises(softindex.UnknownIdError, match="'d'"):
        named.log_prob(vectors(1)[0], ["a", "d"], temperature=1.0)
    with pytest.raises(softindex.InputError, match="string ids"):
        named.log_prob(vectors(1)[0], [1], temperature=1.0)
    numbered = softindex.build(vectors(3), ids=[5, 7, 9])
    with pytest.raises(softindex.UnknownIdError, match="8"):
        numbered.log_prob(vectors(1)[0], [5, 8], temperature=1.0)
    with pytest.raises(softindex.InputError, match="integer ids"):
        numbered.log_prob(vectors(1)[0], ["5"], temperature=1.0)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), k=st.integers(1, 20), temperature=st.sampled_from([0.1, 1.0]))
def test_top_k_is_the_k_best_whatever_the_bounds_left_out(data, k, temperature):
    catalogue = data.draw(catalogues())
    index = softindex.build(catalogue.vectors, clusters=catalogue.clusters, log_bias=catalogue.log_bias)
    query = data.draw(queries(index.dim, count=1))[0]
    count = min(k, len(index))
    best = index.top_k(query, count, temperature=temperature)
    scores = reference.scan(catalogue.vectors, query)
    if catalogue.log_bias is not None:
        scores = scores + temperature * catalogue.log_bias
    slack = 1e-5 * (1 + np.abs(catalogue.vectors).max() * np.abs(query).max() * index.dim)
    expected = scores[reference.top_k(scores, count)]
    np.testing.assert_allclose(best.scores, expected, atol=slack)
    np.testing.assert_allclose(scores[best.ids], best.scores, atol=slack)
    assert len(set(best.ids.tolist())) == count
    assert (np.diff(best.scores) <= 0).all()


def test_top_k_with_clusters_far_apart_scores_few_items():
    data = vectors(2000, 8) * 0.1 + np.repeat(np.eye(8, dtype=np.float32) * 10, 250, axis=0)
    index = softindex.build(data, clusters=8)
    assert index.top_k(np.eye(8, dtype=np.float32)[0], 5).items_scored == 250


def test_top_k_from_probes_never_falls_short_of_k():
    index = softindex.build(vectors(30), clusters=30)
    best = index.top_k(vectors(1)[0], 12, probes=1)
    assert len(set(best.ids.tolist())) == 12
    with pytest.raises(softindex.InputError, match="at most"):
        index.top_k(vectors(1)[0], 31)
    for k in (0, -1, 1.5):
        with pytest.raises(softindex.InputError, match="k "):
            index.top_k(vectors(1)[0], k)


EXTREMES = {
    "one item": vectors(1, 5),
    "one dimension": vectors(100, 1),
    "4096 dimensions": vectors(60, 4096),
    "identical": np.ones((50, 7), np.float32),
    "zero": np.zeros((50, 7), np.float32),
    "huge": vectors(60, 5) * 1e14,
    "tiny": vectors(60, 5) * np.float32(1e-30),
    "float16": vectors(60, 5).astype(np.float16),
}


@pytest.mark.parametrize("temperature", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("dispersion", ["auto", "full"])
def test_extremes_work(name, temperature, dispersion):
    if name == "4096 dimensions" and dispersion == "full":
        dispersion = 3  # a full covariance of 4096 dimensions takes 33 MB a cluster
    data = EXTREMES[name]
    for clusters, tree in product({1, round(len(data) ** 0.5), len(data)}, (False, True)):
        index = softindex.build(data, clusters=clusters, dispersion=dispersion, tree=tree)
        for method in TREE_METHODS if tree else FLAT_METHODS:
            query = data[0].astype(np.float32)
            draws = index.sample(query, 20, temperature=temperature, method=method)
            assert np.isfinite(draws.log_prob).all()
            law = index.log_prob(query, range(len(data)), temperature=temperature, method=method)
            assert np.exp(law).sum() == pytest.approx(1, abs=1e-4)
            if not tree:
                assert np.isfinite(index.log_partition(query, temperature=temperature, method=method).value)


@pytest.mark.parametrize("temperature", [1e-16, 1e-4, 0.1, 1.0])
@pytest.mark.parametrize("method", LAWS)
def test_a_huge_common_score_drowns_nothing(method, temperature):
    """Scores of 1e12 and more, equal or nearly so: the counts still decide."""
    three = np.array([[1, 10], [1, 10.5], [1, -10]], np.float32)
    ones = np.ones((40, 3), np.float32)
    far = vectors(300, 16) + np.float32(1e6)
    cases = [(three, np.array([1e12, 0], np.float32), 2), (ones, ones[0], 40), (far, far[0], 17)]
    for data, query, clusters in cases:
        law = softindex.build(data, clusters=clusters, tree=method in TREE_METHODS).log_prob(
            query, range(len(data)), temperature=temperature, method=method
        )
        assert np.exp(law).sum() == pytest.approx(1, abs=1e-4)


def test_large_biases_against_large_scores_keep_their_digits():
    data, bias = np.array([[0.0], [-1e6]], np.float32), np.array([0, 1e6], np.float32)
    index = softindex.build(data, log_bias=bias, clusters=1)
    temperature = 1.0000001
    law = np.exp(index.log_prob(np.ones(1, np.float32), [0, 1], temperature=temperature, method="exact"))
    second = 1 / (1 + np.exp(-(1e6 - 1e6 / temperature)))
    np.testing.assert_allclose(law, [1 - second, second], atol=1e-6)
    draws = index.sample(np.ones(1, np.float32), 20_000, temperature=temperature, method="exact", seed=1)
    # Within five standard deviations: false alarm 6e-7.
    assert abs(draws.ids.mean() - second) < 5 * (0.25 / 20_000) ** 0.5


@pytest.mark.parametrize("scale", [5.0, 1e4, 1e6])
def test_a_constant_bias_does_not_change_the_top_k(scale):
    data = vectors(2000, 16)
    query = vectors(1, 16, seed=3)[0]
    plain = softindex.build(data).top_k(query, 50).ids
    biased = softindex.build(data, log_bias=np.full(2000, scale, np.float32)).top_k(query, 50, temperature=10.0).ids
    np.testing.assert_array_equal(plain, biased)


def test_ids_of_a_wrong_kind_or_shape_are_refused():
    for ids in (None, [5, 7, 9], ["1", "2", "3"]):
        index = softindex.build(vectors(3), ids=ids)
        with pytest.raises(softindex.InputError):
            index.log_prob(vectors(1)[0], [[1], [1, 2]], temperature=1.0)
    with pytest.raises(softindex.InputError, match="string ids"):
        softindex.build(vectors(3), ids=["1", "2", "3"]).log_prob(vectors(1)[0], [1, "2"], temperature=1.0)


def test_an_item_far_outside_the_sample_makes_no_noise():
    data = vectors(4000, 8) * np.float32(1e-30)
    data[1234] = 1e14
    assert len(softindex.build(data, clusters=2)) == 4000


def test_at_a_very_low_temperature_the_best_item_is_drawn():
    data = vectors(300, 10)
    index = softindex.build(data)
    query = vectors(1, 10, seed=9)[0]
    draws = index.sample(query, 10, temperature=1e-4, method="exact")
    assert (draws.ids == (data @ query).argmax()).all()
    np.testing.assert_allclose(draws.log_prob, 0, atol=1e-6)


def test_at_a_very_high_temperature_every_item_is_as_likely():
    index = softindex.build(vectors(300, 10))
    law = index.log_prob(vectors(1, 10, seed=9)[0], range(300), temperature=1e6, method="sd-2ls")
    np.testing.assert_allclose(law, -np.log(300), atol=1e-4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"clusters": 0}, "clusters"),
        ({"clusters": 401}, "at most"),
        ({"clusters": 2.5}, "clusters"),
        ({"dispersion": "some"}, "dispersion"),
        ({"dispersion": 0}, "dispersion"),
        ({"dispersion": -2}, "dispersion"),
        ({"dispersion": -(10**5000)}, "dispersion"),
        ({"dispersion": 2.5}, "dispersion"),
        ({"dispersion": True}, "dispersion"),
        ({"seed": -1}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"threads": 0}, "threads"),
        ({"ids": [1, 2]}, "ids"),
        ({"ids": [0] * 400}, "more than once"),
        ({"log_bias": np.zeros(3, np.float32)}, "log_bias"),
        ({"log_bias": np.full(400, np.nan)}, "log_bias"),
    ],
)
def test_bad_build_settings_are_refused(change, sentence):
    with pytest.raises(softindex.InputError, match=sentence):
        softindex.build(vectors(), **change)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((0, 4), np.float32),
        np.zeros((4, 0), np.float32),
        np.zeros(4, np.float32),
        np.zeros((4, 4), complex),
        np.zeros((4, 4), bool),
        np.full((4, 4), np.nan, np.float32),
        np.full((4, 4), np.inf, np.float32),
        np.full((4, 4), 1e20, np.float32),
    ],
)
def test_bad_vectors_are_refused(wrong):
    with pytest.raises(softindex.InputError):
        softindex.build(wrong)


def test_unknown_methods_and_methods_the_index_was_not_built_for_are_refused(index):
    query = vectors(1)[0]
    for method in ("softmax", "", None, 3):
        with pytest.raises(softindex.MethodError, match="there is no method"):
            index.sample(query, temperature=1.0, method=method)
    plain = softindex.build(vectors(), dispersion="none")
    with pytest.raises(softindex.MethodError, match="dispersion"):
        plain.sample(query, temperature=1.0)
    assert plain.sample(query, temperature=1.0, method="s-2ls").ids.shape == (1,)


def test_the_same_settings_build_the_same_index():
    first, second = (
        softindex.build(vectors(), seed=3, threads=1),
        softindex.build(vectors(), seed=3, threads=2),
    )
    np.testing.assert_array_equal(first.ids, second.ids)
    np.testing.assert_array_equal(look_inside(first).moments.means, look_inside(second).moments.means)


def test_the_callers_arrays_may_change_after_the_build():
    data, bias = vectors(50), np.zeros(50, np.float32)
    index = softindex.build(data, log_bias=bias)
    before = index.log_prob(data[0].copy(), range(50), temperature=1.0)
    query = data[0].copy()
    data[:], bias[:] = 0, 9
    np.testing.assert_array_equal(index.log_prob(query, range(50), temperature=1.0), before)


def test_many_threads_may_draw_from_one_index_at_once(index):
    batch = vectors(64)
    expected = index.sample(batch, 7, temperature=0.5, seed=1).ids
    wrong = []

    def draw():
        for _ in range(20):
            again = index.sample(batch, 7, temperature=0.5, seed=1)
            wrong.append(not np.array_equal(again.ids, expected))

    workers = [threading.Thread(target=draw) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(wrong) == 120
    assert not any(wrong)


SCRIPT = """
import hashlib, numpy as np, softindex
data = np.random.default_rng(0).standard_normal((3000, 23)).astype(np.float32)
index = softindex.load(__import__("sys").argv[1])
digest = hashlib.sha256()
for method in softindex.laws.LAWS:
    draws = index.sample(data[:50], 9, temperature=0.2, method=method, seed=4)
    digest.update(draws.ids.tobytes() + draws.log_prob.round(12).tobytes())
best = index.top_k(data[:50], 5)
digest.update(best.ids.tobytes() + best.scores.tobytes())
print(digest.hexdigest())
"""


def test_every_instruction_set_draws_the_same_items(tmp_path):
    from softindex.kernels import _native

    data = np.random.default_rng(0).standard_normal((3000, 23)).astype(np.float32)
    softindex.build(data, clusters=55, tree=True).save(tmp_path / "index")
    digests = set()
    for target in _native.targets():
        environment = {**os.environ, "SOFTINDEX_TARGET": target}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "index")]
        digests.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(digests) == 1
