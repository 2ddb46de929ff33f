"""AdaptiveSoftmax: the right classes and probabilities, whatever the guarantee, and a sentence for what is wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softindex
from softindex import AdaptiveSoftmax
from softindex.adaptive import GUARANTEES, from_stored
from softindex.adaptive.rows import Rows
from softindex.fields import ADAPTIVE
from softindex.records import Stored
from softindex.store import load as load_stored
from softindex.store import save as save_stored

EPSILON = 0.3
KIND = ADAPTIVE.kind


def made(n=400, d=96, seed=0, scale=1.0, planted=6.0):
    """Rows of about unit length, and queries of which each leans to a row."""
    rng = np.random.default_rng(seed)
    weights = (scale * rng.standard_normal((n, d)) / np.sqrt(d)).astype(np.float32)
    queries = planted * weights[rng.integers(n, size=30)] / scale**2 + rng.standard_normal((30, d))
    return weights, queries.astype(np.float32)


def logits_of(weights, query, temperature=1.0, bias=None, log_bias=None):
    """In float64: (W x + bias) / temperature + log_bias."""
    # Unlike a product by BLAS, this gives equal rows equal scores.
    scores = np.einsum("nd,d->n", weights.astype(np.float64), query.astype(np.float64)) + (0 if bias is None else bias)
    return scores / temperature + (0 if log_bias is None else log_bias)


def softmax(weights, query, temperature=1.0, bias=None, log_bias=None):
    logits = logits_of(weights, query, temperature, bias, log_bias)
    total = np.logaddexp.reduce(logits)
    return np.exp(logits - total), total


def load(path, *, mmap=True):
    return from_stored(load_stored(path, mmap=mmap, kind=KIND))


def assert_right(found, weights, query, k, *, temperature=1.0, bias=None, log_bias=None, epsilon=EPSILON):
    chances, log_z = softmax(weights, query, temperature, bias, log_bias)
    # By their logits, as the probabilities may be too small to be told apart.
    logits = logits_of(weights, query, temperature, bias, log_bias)
    best = np.lexsort((np.arange(len(logits)), -logits))[:k]
    np.testing.assert_array_equal(found.ids, best)
    np.testing.assert_allclose(np.exp(found.log_prob), chances[best], rtol=epsilon)
    assert found.log_partition.low - 1e-9 <= log_z <= found.log_partition.high + 1e-9
    assert found.log_partition.low <= found.log_partition.value <= found.log_partition.high


@pytest.mark.parametrize("guarantee", ["exact", "deterministic", "calibrated"])
@pytest.mark.parametrize("k", [1, 5, 50])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 30.0])
@pytest.mark.parametrize("biased", [False, True])
def test_the_best_are_found_with_their_probabilities(guarantee, k, temperature, biased):
    weights, queries = made()
    rng = np.random.default_rng(1)
    bias, log_bias = rng.standard_normal((2, len(weights))).astype(np.float32) if biased else (None, None)
    soft = AdaptiveSoftmax(weights, bias, log_bias=log_bias)
    soft.calibrate(made(seed=0)[1], confidence=0.9)
    for query in queries[:8]:
        found = soft.top_k(query, k, temperature=temperature, guarantee=guarantee, confidence=0.9)
        assert_right(found, weights, query, k, temperature=temperature, bias=bias, log_bias=log_bias)
        assert found.guarantee in (guarantee, "exact")


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 70),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    epsilon=st.sampled_from([0.5, 0.05, 1e-4]),
    guarantee=st.sampled_from(["exact", "deterministic"]),
)
def test_a_proof_holds_for_any_weights(n, d, seed, scale, epsilon, guarantee):
    rng = np.random.default_rng(seed)
    weights = (scale * rng.standard_normal((n, d))).astype(np.float32)
    weights[rng.integers(n)] = weights[0]
    query = rng.standard_normal(d).astype(np.float32)
    k = int(rng.integers(1, n + 1))
    found = AdaptiveSoftmax(weights).top_k(query, k, temperature=1.0, epsilon=epsilon, guarantee=guarantee)
    assert_right(found, weights, query, k, epsilon=epsilon)


@pytest.mark.parametrize(("k", "delta"), [(1, 0.1), (1, 0.01), (5, 0.1)])
@pytest.mark.parametrize("planted", [3.0, 12.0])
def test_estimates_fail_no_more_often_than_they_may(k, delta, planted):
    trials, failures = 0, 0
    for seed in range(3):
        weights, queries = made(n=200, d=3000, seed=seed, planted=planted)
        soft = AdaptiveSoftmax(weights, seed=seed)
        found = soft.top_k(queries, k, temperature=1.0, confidence=1 - delta, guarantee="pac", epsilon=EPSILON)
        for row, query in enumerate(queries):
            chances, _ = softmax(weights, query)
            best = np.argsort(-chances)[:k]
            right = set(found.ids[row]) == set(best)
            near = right and (np.abs(np.exp(found.log_prob[row]) / chances[found.ids[row]] - 1) <= EPSILON).all()
            trials, failures = trials + 1, failures + (not near)
    assert failures <= delta * trials + 3 * np.sqrt(delta * trials) + 1


def test_estimates_read_less_where_a_few_coordinates_tell():
    rng = np.random.default_rng(0)
    d = 20_000
    weights = (rng.standard_normal((50, d)) / (np.sqrt(10) * d)).astype(np.float32)
    weights[0] += np.float32(1 / d)
    found = AdaptiveSoftmax(weights).top_k(np.ones(d, np.float32), 1, temperature=1.0, guarantee="pac")
    assert found.ids[0] == 0
    assert found.guarantee == "pac"
    assert found.multiplications < 50 * d / 20
    assert found.bytes_read < 4 * 50 * d / 20


@pytest.mark.parametrize("guarantee", ["exact", "deterministic", "pac"])
@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_ties_end_and_are_broken_by_number(guarantee, k):
    rng = np.random.default_rng(0)
    row = rng.standard_normal(40).astype(np.float32)
    weights = np.stack([row * 0.5, row, row * 0.1, row, row, -row, row])
    found = AdaptiveSoftmax(weights).top_k(row, k, temperature=1.0, guarantee=guarantee)
    assert found.ids.tolist() == [1, 3, 4, 6, 0, 2, 5][:k]
    chances, _ = softmax(weights, row)
    np.testing.assert_allclose(np.exp(found.log_prob), chances[found.ids], rtol=EPSILON)


@pytest.mark.parametrize("guarantee", ["exact", "deterministic", "pac"])
def test_equal_rows_a_zero_query_and_one_row(guarantee):
    equal = AdaptiveSoftmax(np.ones((30, 20), np.float32))
    assert equal.top_k(np.ones(20), 4, temperature=1.0, guarantee=guarantee).ids.tolist() == [0, 1, 2, 3]
    uniform = equal.top_k(np.zeros(20), 30, temperature=1.0, guarantee=guarantee)
    np.testing.assert_allclose(np.exp(uniform.log_prob), 1 / 30, rtol=EPSILON)
    single = AdaptiveSoftmax(np.ones((1, 3), np.float32)).top_k(np.ones(3), 1, temperature=1.0, guarantee=guarantee)
    assert np.exp(single.log_prob[0]) == pytest.approx(1.0, rel=EPSILON)


@pytest.mark.parametrize("guarantee", ["exact", "deterministic", "pac"])
def test_a_batch_is_its_queries_one_by_one(guarantee):
    weights, queries = made(d=700, planted=15)
    soft = AdaptiveSoftmax(weights)
    whole = soft.top_k(queries[:11], 3, temperature=1.0, guarantee=guarantee, threads=2)
    assert whole.ids.shape == whole.log_prob.shape == (11, 3)
    for row in range(11):
        alone = soft.top_k(queries[row], 3, temperature=1.0, guarantee=guarantee, threads=1)
        np.testing.assert_array_equal(whole.ids[row], alone.ids)
        np.testing.assert_array_equal(whole.log_prob[row], alone.log_prob)
        assert whole.guarantee[row] == alone.guarantee
        assert whole.multiplications[row] == alone.multiplications
        assert whole.log_partition.value[row] == alone.log_partition.value


@pytest.mark.parametrize("guarantee", ["exact", "deterministic", "pac"])
@pytest.mark.parametrize("temperature", [0.05, 0.08, 1e-2, 1e-4])
def test_low_temperatures_leave_nothing_out_of_range(guarantee, temperature):
    weights = np.random.default_rng(0).standard_normal((100, 512)).astype(np.float32)
    query = np.random.default_rng(1).standard_normal(512).astype(np.float32)
    soft = AdaptiveSoftmax(weights)
    found = soft.top_k(query, 3, temperature=temperature, guarantee=guarantee)
    assert_right(found, weights, query, 3, temperature=temperature)
    assert np.isfinite([found.log_partition.value, found.log_partition.low, found.log_partition.high]).all()
    assert set(soft.sample(query, 3, temperature=temperature, seed=0).ids) == {int(found.ids[0])}


def test_an_epsilon_below_rounding_is_met_as_far_as_float64_goes():
    weights = np.random.default_rng(0).standard_normal((100, 512)).astype(np.float32)
    query = np.random.default_rng(1).standard_normal(512).astype(np.float32)
    bias = np.zeros(100)
    bias[3] = 1e6
    for soft, temperature in ((AdaptiveSoftmax(weights), 1e-2), (AdaptiveSoftmax(weights, bias), 1.0)):
        for guarantee in ("exact", "deterministic", "pac"):
            for epsilon in (1e-13, 1e-300):
                found = soft.top_k(query, 1, temperature=temperature, epsilon=epsilon, guarantee=guarantee)
                assert found.log_partition.low <= found.log_partition.value <= found.log_partition.high
    equal = AdaptiveSoftmax(np.full((4, 3), 1e5, np.float32))
    assert equal.nucleus(np.full(3, 100, np.float32), 0.5, temperature=1.0).sizes == 2


def test_sparse_rows_are_not_taken_for_zero():
    rng = np.random.default_rng(0)
    weights = np.zeros((400, 4096), np.float32)
    for row in weights:
        row[rng.choice(4096, 10, replace=False)] = 2 + rng.random(10)
    weights[0] = 20 / 4096
    right = 0
    for seed in range(10):
        query = (1 + 0.01 * rng.random(4096)).astype(np.float32)
        found = AdaptiveSoftmax(weights, seed=seed).top_k(query, 1, temperature=1.0, guarantee="pac", confidence=0.95)
        right += found.ids[0] == softmax(weights, query)[0].argmax()
    assert right == 10


@pytest.mark.parametrize("scale", [1e-13, 1e-15, 5e9, 4e12])
def test_estimates_at_the_ends_of_float32(scale):
    weights = (np.random.default_rng(0).standard_normal((200, 4096)) * scale).astype(np.float32)
    query = (weights[123] * 3).astype(np.float32)
    soft, temperature = AdaptiveSoftmax(weights), scale**2 * 100
    for guarantee in ("pac", "deterministic", "exact"):
        assert_right(
            soft.top_k(query, 1, temperature=temperature, guarantee=guarantee),
            weights,
            query,
            1,
            temperature=temperature,
        )


def test_isotropic_noise_falls_back_to_scoring_everything():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2000, 300)).astype(np.float32)
    query = rng.standard_normal(300).astype(np.float32)
    for guarantee in ("deterministic", "pac"):
        found = AdaptiveSoftmax(weights / 60).top_k(query, 3, temperature=1.0, guarantee=guarantee, epsilon=1e-6)
        assert found.guarantee == "exact"
        assert found.multiplications >= weights.size
        assert_right(found, weights / 60, query, 3, epsilon=1e-6)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "memmap", "strided", "Fortran", "path", "path of bfloat16"])
def test_weights_of_other_types_are_the_numbers_they_stand_for(kind, tmp_path):
    weights, queries = made()
    given, meant = weights, weights
    if kind == "float16":
        given = weights.astype(np.float16)
        meant = given.astype(np.float32)
    elif kind.endswith("bfloat16"):
        given = (weights.view(np.uint32) >> 16).astype(np.uint16)
        meant = (given.astype(np.uint32) << 16).view(np.float32)
    elif kind == "memmap":
        np.save(tmp_path / "weights.npy", weights)
        given = np.load(tmp_path / "weights.npy", mmap_mode="r")
    elif kind == "Fortran":
        given = np.asfortranarray(weights)
    elif kind == "strided":
        given = np.repeat(weights, 2, axis=0)[::2]
    if kind.startswith("path"):
        np.save(tmp_path / "weights.npy", given)
        given = tmp_path / "weights.npy"
    soft = AdaptiveSoftmax(given)
    for guarantee in ("exact", "deterministic", "pac"):
        assert_right(soft.top_k(queries[0], 5, temperature=1.0, guarantee=guarantee), meant, queries[0], 5)


def test_a_saved_one_answers_as_before(tmp_path):
    weights, queries = made()
    for number, kept in enumerate((weights, (weights.view(np.uint32) >> 16).astype(np.uint16))):
        soft = AdaptiveSoftmax(kept, np.arange(len(weights)) / 100, log_bias=np.arange(len(weights)) / 300, seed=3)
        soft.calibrate(queries, confidence=0.8, k=4 if number else None, temperature=0.7)
        soft.save(tmp_path / f"saved{number}")
        for again in (load(tmp_path / f"saved{number}", mmap=mmap) for mmap in (True, False)):
            for guarantee in GUARANTEES:
                first = soft.top_k(queries[0], 4, temperature=0.7, guarantee=guarantee, confidence=0.8)
                second = again.top_k(queries[0], 4, temperature=0.7, guarantee=guarantee, confidence=0.8)
                np.testing.assert_array_equal(first.ids, second.ids)
                np.testing.assert_array_equal(first.log_prob, second.log_prob)


def test_every_float16_is_widened_to_itself():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].reshape(-1, 16)
    np.testing.assert_array_equal(Rows(halves).widen(halves), halves.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("calibration", lambda array: array[:1]),
        ("calibration", lambda array: array[:, :0]),
        ("calibration", lambda array: array.ravel()),
        ("calibration", lambda array: array.astype(np.float32)),
        ("weights", lambda array: array.astype(np.float64)),
        ("bias", lambda array: array[:-1]),
        ("log_bias", lambda array: array * np.nan),
        ("codes_8", lambda array: array.view(np.uint8)),
        ("codes_8", lambda array: array[:3, :3]),
        ("scales_4", lambda array: array.astype(np.float64)),
    ],
)
def test_a_damaged_one_is_refused(name, change, tmp_path):
    weights, queries = made(n=50, d=20)
    soft = AdaptiveSoftmax(weights)
    soft.calibrate(queries, confidence=0.8)
    soft.save(tmp_path / "saved")
    stored = load_stored(tmp_path / "saved", mmap=False, kind=KIND)
    arrays = {**stored.arrays, name: np.ascontiguousarray(change(stored.arrays[name]))}
    save_stored(tmp_path / "damaged", Stored(KIND, stored.parameters, arrays))
    with pytest.raises(softindex.CorruptIndexError, match=name):
        load(tmp_path / "damaged")


def test_log_partition_is_within_epsilon():
    weights, queries = made(scale=3.0)
    soft = AdaptiveSoftmax(weights)
    for epsilon in (0.5, 0.01):
        found = soft.log_partition(queries, temperature=1.0, epsilon=epsilon)
        for row, query in enumerate(queries):
            truth = softmax(weights, query)[1]
            assert found.low[row] <= truth <= found.high[row]
            assert abs(np.expm1(truth - found.value[row])) <= epsilon


def test_calibrated_radii_are_narrower_and_hold_as_often_as_asked():
    weights, _ = made(n=500, d=256)
    rng = np.random.default_rng(5)
    soft = AdaptiveSoftmax(weights)
    soft.calibrate(rng.standard_normal((399, 256)).astype(np.float32))
    factors = soft._solver.calibration.factors(0.9)
    assert max(factors) < 0.3
    missed = 0
    for query in rng.standard_normal((400, 256)).astype(np.float32).astype(float):
        held = True
        for level, factor in zip(soft._solver.layer.screen.levels, factors, strict=True):
            scores = soft._solver.layer.screen.score(level, query[None], 1)[0]
            held &= bool((np.abs(weights.astype(float) @ query - scores.values) <= factor * scores.radii).all())
        missed += not held
    assert missed <= 0.1 * 400 + 4 * np.sqrt(0.1 * 0.9 * 400)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"k": 0}, "k is 0; expected one integer from 1 to 400"),
        ({"k": 401}, "k is 401; expected one integer from 1 to 400"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": 1.0}, "epsilon is 1.0"),
        ({"confidence": 1.5}, "confidence is 1.5"),
        ({"confidence": "small"}, "confidence is 'small'"),
        ({"temperature": 0}, "temperature is 0"),
        ({"temperature": -1}, "temperature is -1"),
        ({"guarantee": "sure"}, "no guarantee 'sure'"),
        ({"guarantee": "calibrated"}, "nothing is calibrated yet"),
        ({"queries": np.ones(95)}, "95 dimensions but these weights have 96"),
        ({"queries": np.full(96, np.nan)}, "the query"),
        ({"queries": np.full(96, np.inf)}, "the query"),
        ({"threads": 0}, "threads is 0"),
        ({"exclude": [400]}, "exclude names class 400, which does not exist; this layer has the classes 0 to 399"),
        ({"exclude": [0.5]}, "got float ids"),
        ({"exclude": [[1], [2]]}, "exclude has 2 entries for 1 queries"),
        ({"exclude": range(400)}, "exclude leaves no class; leave at least one"),
        ({"exclude": range(10), "k": 391}, "k is 391 but exclude leaves 390 classes; ask for at most that many"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(arguments, sentence):
    soft = AdaptiveSoftmax(made()[0])
    with pytest.raises(softindex.InputError, match=sentence):
        soft.top_k(**{"queries": np.ones(96), "k": 1, "temperature": 1.0, **arguments})


def test_bad_weights_are_refused_in_a_sentence():
    weights = made()[0]
    weights[3, 4] = np.nan
    with pytest.raises(softindex.InputError, match="row 3 of the weights"):
        AdaptiveSoftmax(weights)
    brain = np.full((5, 4), 0x7F80, np.uint16)
    with pytest.raises(softindex.InputError, match="row 0 of the weights"):
        AdaptiveSoftmax(brain)
    for bad in (np.ones(4, np.float32), np.ones((0, 4), np.float32), np.ones((3, 4), complex), np.ones((3, 4), bool)):
        with pytest.raises(softindex.InputError, match="weights"):
            AdaptiveSoftmax(bad)
    with pytest.raises(softindex.InputError, match=r"bias has shape \(1,\); expected \(3,\), one number per class"):
        AdaptiveSoftmax(np.ones((3, 4), np.float32), [1.0])
    with pytest.raises(softindex.InputError, match=r"log_bias has shape \(1,\); expected \(3,\)"):
        AdaptiveSoftmax(np.ones((3, 4), np.float32), log_bias=[1.0])
    with pytest.raises(softindex.InputError, match=r"convert with numpy\.asarray"):
        AdaptiveSoftmax([["a", "b"], ["c", "d"]])
    soft = AdaptiveSoftmax(np.ones((3, 4), np.float32))
    soft.calibrate(np.ones((39, 4)))
    with pytest.raises(softindex.InputError, match=r"there are 1 queries .* takes at least 39"):
        soft.calibrate(np.ones(4))
    assert soft.top_k(np.ones(4), 1, temperature=1.0, guarantee="calibrated", confidence=0.95).ids[0] == 0
    with pytest.raises(softindex.InputError, match="calibrate with at least 199"):
        soft.top_k(np.ones(4), 1, temperature=1.0, guarantee="calibrated", confidence=0.99)
