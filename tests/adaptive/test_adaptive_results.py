"""What results hold besides the best classes: costs, proofs, log-probabilities of given classes, and nuclei."""

import copy
import inspect
import pickle

import numpy as np
import pytest

import softindex
from softindex import AdaptiveSoftmax
from softindex.adaptive import from_stored
from softindex.fields import ADAPTIVE
from softindex.records import Stored, TopK
from softindex.store import load, save


def layer(case):
    return AdaptiveSoftmax(case.weights, case.bias, log_bias=case.log_bias)


@pytest.mark.parametrize(("guarantee", "k"), [("exact", 3), ("deterministic", 3), ("calibrated", 3), ("pac", 1)])
def test_a_result_says_what_is_proven_and_what_it_cost(make_case, guarantee, k):
    # At 4,096 the columns that these leads take would cost more than a quarter of a scan: pac must score everything.
    case = make_case(n=500, d=16_384 if guarantee == "pac" else 4096, planted=30.0, noise=0.1)
    soft = layer(case)
    soft.calibrate(case.queries, confidence=0.8)
    found = soft.top_k(case.queries, k, temperature=1.0, guarantee=guarantee, confidence=0.8)
    assert isinstance(found, TopK)
    assert found.ids.shape == found.scores.shape == found.log_prob.shape == found.proven.shape == (12, k)
    proven = np.isin(found.guarantee, ["exact", "deterministic"])
    np.testing.assert_array_equal(found.proven, np.repeat(proven[:, None], k, axis=1))
    np.testing.assert_array_equal(found.gap, np.where(proven, 0.0, np.nan))
    assert (found.items_scored <= 500).all()
    assert (found.items_scored[found.guarantee == "exact"] == 500).all()
    assert (found.multiplications > 0).all()
    assert (found.bytes_read > 0).all()
    assert found.sizes is None
    assert guarantee in found.guarantee
    alone = soft.top_k(case.queries[0], k, temperature=1.0, guarantee=guarantee, confidence=0.8)
    assert alone.ids.shape == (k,)
    assert isinstance(alone.guarantee, str)
    assert isinstance(alone.gap, float)
    assert isinstance(alone.items_scored, int)


@pytest.mark.parametrize("guarantee", ["exact", "deterministic", "pac"])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 10.0])
def test_log_prob_of_given_classes(make_case, guarantee, temperature):
    case = make_case(planted=20.0)
    soft, exclude = layer(case), [7, 8]
    options = {"temperature": temperature, "epsilon": 0.01, "guarantee": guarantee, "exclude": exclude}
    ids = np.arange(5, 12)
    found = soft.log_prob(case.queries, ids, **options)
    assert found.shape == (12, 7)
    for row, query in enumerate(case.queries):
        truth = case.log_prob(query, temperature, exclude)[ids]
        assert (found[row][[2, 3]] == -np.inf).all()
        np.testing.assert_allclose(np.delete(found[row], [2, 3]), np.delete(truth, [2, 3]), atol=0.0101)
        np.testing.assert_array_equal(soft.log_prob(query, ids, **options), found[row])
    own = np.arange(24).reshape(12, 2)
    assert soft.log_prob(case.queries, own, temperature=1.0).shape == (12, 2)
    assert soft.log_prob(case.queries[0], 5, temperature=1.0).shape == ()


def test_log_prob_agrees_with_top_k(make_case):
    case = make_case()
    soft = layer(case)
    best = soft.top_k(case.queries, 1, temperature=1.0)
    np.testing.assert_allclose(soft.log_prob(case.queries, best.ids, temperature=1.0), best.log_prob, rtol=1e-12)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([300], "ids name class 300, which does not exist; this layer has the classes 0 to 299"),
        ([-1], "ids name class -1, which does not exist"),
        ([1.5], "got float ids"),
        (np.zeros((3, 2), int), r"ids have shape \(3, 2\) for 12 queries"),
    ],
)
def test_wrong_classes_are_refused_in_a_sentence(make_case, ids, sentence):
    case = make_case()
    with pytest.raises(softindex.InputError, match=sentence):
        layer(case).log_prob(case.queries, ids, temperature=1.0)


@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("d", [40, 320])
def test_a_nucleus_is_the_smallest_that_holds_enough(make_case, top_p, d):
    case = make_case(d=d, planted=4.0)
    soft = layer(case)
    found = soft.nucleus(case.queries[:5], top_p, temperature=1.3)
    assert found.ids.shape == (5, found.sizes.max())
    for row, query in enumerate(case.queries[:5]):
        log_prob = case.log_prob(query, 1.3)
        order, count = np.argsort(-log_prob), found.sizes[row]
        np.testing.assert_array_equal(found.ids[row, :count], order[:count])
        np.testing.assert_allclose(found.log_prob[row, :count], log_prob[order[:count]], atol=0.0101)
        np.testing.assert_allclose(found.scores[row, :count], 1.3 * case.logits(query, 1.3)[order[:count]], rtol=1e-9)
        assert np.exp(log_prob[order[:count]]).sum() >= top_p - 1e-9
        assert np.exp(log_prob[order[: count - 1]]).sum() < top_p + 1e-9
        assert found.proven[row].tolist() == [True] * count + [False] * (found.sizes.max() - count)
        assert (found.ids[row, count:] == -1).all()
        assert (found.scores[row, count:] == -np.inf).all()
        assert (found.log_prob[row, count:] == -np.inf).all()
        alone = soft.nucleus(query, top_p, temperature=1.3)
        np.testing.assert_array_equal(alone.ids, order[:count])
        assert alone.sizes == count
    assert (found.gap == 0).all()


def test_the_default_guarantee_is_the_same_everywhere():
    for call in (AdaptiveSoftmax.top_k, AdaptiveSoftmax.log_partition, AdaptiveSoftmax.log_prob):
        assert inspect.signature(call).parameters["guarantee"].default == "deterministic"


def test_the_temperature_is_never_guessed(make_case):
    case = make_case()
    soft = layer(case)
    for call in (
        lambda: soft.top_k(case.queries, 1),
        lambda: soft.log_partition(case.queries),
        lambda: soft.log_prob(case.queries, [0]),
        lambda: soft.nucleus(case.queries, 0.5),
        lambda: soft.sample(case.queries),
    ):
        with pytest.raises(TypeError, match="temperature"):
            call()


@pytest.mark.parametrize("temperature", [1e-30, 1e-8, 1e8, 1e30])
@pytest.mark.parametrize("d", [40, 320])
def test_every_call_answers_at_extreme_temperatures(make_case, temperature, d):
    case = make_case(d=d)
    soft = layer(case)
    best = soft.top_k(case.queries, 3, temperature=temperature)
    assert (best.log_partition.low <= best.log_partition.value).all()
    assert (best.log_partition.value <= best.log_partition.high).all()
    assert (best.ids[:, 0] == [case.logits(query, temperature).argmax() for query in case.queries]).all()
    assert (soft.nucleus(case.queries, 0.5, temperature=temperature).sizes >= 1).all()
    assert (soft.log_prob(case.queries, [1, 2], temperature=temperature) <= 0).all()
    for options in ({}, {"method": "top-k", "k": 5}, {"top_p": 0.5}):
        draws = soft.sample(case.queries, 4, temperature=temperature, seed=0, **options)
        assert (draws.log_prob <= 0).all()
        if temperature < 1:
            assert (draws.ids == best.ids[:, :1]).all()


def test_pickling_is_refused_in_a_sentence(make_case):
    soft = layer(make_case())
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"save it with layer.save\(path\) and open it with softindex.load\(path\)"):
            attempt(soft)


def test_a_file_of_version_one_has_no_log_bias(make_case, tmp_path):
    case = make_case(n=40, d=20)
    AdaptiveSoftmax(case.weights, case.bias).save(tmp_path / "saved")
    stored = load(tmp_path / "saved", kind=ADAPTIVE.kind)
    arrays = {name: array for name, array in stored.arrays.items() if name != "log_bias"}
    save(tmp_path / "old", Stored(ADAPTIVE.kind, stored.parameters, arrays, version=1))
    found, expected = (
        from_stored(load(tmp_path / name)).log_partition(case.queries, temperature=2.0).value
        for name in ("old", "saved")
    )
    np.testing.assert_array_equal(found, expected)
    save(tmp_path / "damaged", Stored(ADAPTIVE.kind, stored.parameters, arrays))
    with pytest.raises(softindex.CorruptIndexError, match="log_bias is missing"):
        from_stored(load(tmp_path / "damaged"))
    for name, value in (("n", 0), ("d", "20"), ("seed", -1)):
        save(tmp_path / "damaged", Stored(ADAPTIVE.kind, {**stored.parameters, name: value}, stored.arrays))
        with pytest.raises(softindex.CorruptIndexError, match=name):
            from_stored(load(tmp_path / "damaged"))
