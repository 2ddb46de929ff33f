"""Each kernel matches its float64 reference, on every instruction set that this CPU runs."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softindex.kernels import _native, reference

TARGETS = _native.targets()
UNIT = 2.0**-24

every_target = pytest.mark.parametrize("target", TARGETS)
few = settings(max_examples=60, deadline=None)


def normal(shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def scan(rows, query, target):
    dots = np.full(len(rows), np.nan, np.float32)
    _native.scan(rows, query, dots, target)
    return dots


def weigh(dots, temperature, bias, target):
    weights, prefix = np.empty(len(dots), np.float32), np.empty(-(-len(dots) // 64))
    total = _native.weigh(dots, temperature, bias, weights, prefix, target)
    return weights, prefix, total


@every_target
@few
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 140),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-15, 1, 1e12]),
)
def test_the_error_of_a_scan_is_within_the_float32_bound(target, n, d, seed, scale):
    rows, query = normal((n, d), seed, scale), normal(d, seed + 1)
    truth = reference.scan(rows, query)
    bound = _native.dot_error(d) * np.linalg.norm(rows.astype(float), axis=1) * np.linalg.norm(query.astype(float))
    assert (np.abs(scan(rows, query, target) - truth) <= bound).all()


@every_target
@few
@given(n=st.integers(1, 140), d=st.integers(1, 140), b=st.integers(1, 14), seed=st.integers(0, 10**6))
def test_many_queries_at_once_score_the_same_as_one_at_a_time(target, n, d, b, seed):
    rows, queries = normal((n, d), seed), normal((b, d), seed + 1)
    together = np.empty((b, n), np.float32)
    _native.scan_many(rows, queries, together, target)
    for query, dots in zip(queries, together, strict=True):
        np.testing.assert_array_equal(dots, scan(rows, query, target))


@every_target
def test_a_scan_reads_nothing_past_the_matrix(target):
    # NaN follows the last row: if it were read, NaN times the zero padding would still be NaN.
    for d in (1, 3, 15, 16, 17, 100):
        memory = np.full(7 * d + 64, np.nan, np.float32)
        memory[: 7 * d] = 1.0
        dots = scan(memory[: 7 * d].reshape(7, d), np.ones(d, np.float32), target)
        np.testing.assert_array_equal(dots, np.full(7, d, np.float32))
        together = np.empty((6, 7), np.float32)
        _native.scan_many(memory[: 7 * d].reshape(7, d), np.ones((6, d), np.float32), together, target)
        np.testing.assert_array_equal(together, np.full((6, 7), d, np.float32))


def residuals(n, d, seed, kind, biased, b):
    """Integers, scales, biases or None, b queries, and the dot products of these with a centre."""
    rng, largest = np.random.default_rng(seed), np.iinfo(kind).max
    integers = rng.integers(-largest, largest, (n, d), kind, endpoint=True)
    scales, bias = np.abs(normal(n, seed + 1, 1e-3)), normal(n, seed + 2) if biased else None
    if biased:
        integers[:, -1] = 0
    return integers, scales, bias, normal((b, d), seed + 3), normal(b, seed + 4)


def scan_residuals(integers, scales, bias, queries, centre_dots, target):
    dots = np.full((len(queries), len(integers)), np.nan, np.float32)
    kernel = getattr(_native, f"scan_residuals_{integers.dtype}")
    kernel(integers, scales, bias, queries, centre_dots, dots, target)
    return dots


@few
@given(
    n=st.integers(1, 140),
    # Rows of more than 512 numbers are not converted for all queries together.
    d=st.integers(1, 140) | st.integers(505, 530),
    b=st.integers(1, 10),
    seed=st.integers(0, 10**6),
    kind=st.sampled_from([np.int8, np.int16]),
    biased=st.booleans(),
)
def test_scores_of_residuals_are_within_the_float32_bound_and_the_same_everywhere(n, d, b, seed, kind, biased):
    integers, scales, bias, queries, centre_dots = residuals(n, d, seed, kind, biased, b)
    dots = scan_residuals(integers, scales, bias, queries, centre_dots, TARGETS[0])
    lengths = np.linalg.norm(integers * scales[:, None].astype(float), axis=1)
    for query, centre, found in zip(queries, centre_dots, dots, strict=True):
        truth = reference.scan_residuals(integers, scales, bias, query, float(centre))
        added = np.abs(centre) + (0.0 if bias is None else np.abs(query[-1] * bias))
        bound = (_native.dot_error(d) + 4 * UNIT) * (lengths * np.linalg.norm(query.astype(float)) + added)
        assert (np.abs(found - truth) <= bound).all()
    for target in TARGETS:
        np.testing.assert_array_equal(dots, scan_residuals(integers, scales, bias, queries, centre_dots, target))
        alone = [
            scan_residuals(integers, scales, bias, queries[g : g + 1], centre_dots[g : g + 1], target)[0]
            for g in range(b)
        ]
        np.testing.assert_array_equal(dots, alone)


@few
@given(
    n=st.integers(1, 300),
    d=st.integers(1, 140),
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([1e-4, 0.1, 3.0]),
)
def test_every_target_gives_the_same_bits(n, d, seed, temperature):
    rows, query, bias = normal((n, d), seed), normal(d, seed + 1), normal(n, seed + 2)
    for other in TARGETS[1:]:
        np.testing.assert_array_equal(scan(rows, query, TARGETS[0]), scan(rows, query, other))
        for part in (None, bias):
            first = weigh(scan(rows, query, TARGETS[0]), temperature, part, TARGETS[0])
            second = weigh(scan(rows, query, other), temperature, part, other)
            np.testing.assert_array_equal(first[0], second[0])
            np.testing.assert_array_equal(first[1], second[1])
            assert first[2] == second[2]


@every_target
@few
@given(
    n=st.integers(1, 700),
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([1e-4, 0.05, 1.0, 1e4]),
    biased=st.booleans(),
)
def test_the_errors_of_weights_and_their_sum_are_within_the_float32_bound(target, n, seed, temperature, biased):
    dots, bias = normal(n, seed), normal(n, seed + 1, 5.0) if biased else None
    weights, prefix, total = weigh(dots, temperature, bias, target)
    truth, log_sum = reference.weigh(dots, temperature, bias)
    logits = np.log(np.maximum(truth, 1e-300))
    # Logit, bias and peak are rounded a few times: the error is a few units of each, plus two units of the weight.
    units = 8 + 6 * np.abs(logits) + (0 if bias is None else 8 * np.abs(bias).max())
    np.testing.assert_array_less(np.abs(weights - truth), truth * UNIT * units + 2e-38)
    assert total == pytest.approx(log_sum, abs=2e-5, rel=1e-12)
    np.testing.assert_allclose(prefix, reference.prefix_sums(weights), rtol=1e-6)


@every_target
def test_the_exponential_is_accurate_to_three_units_over_its_full_range(target):
    dots = -np.linspace(0, 86.9, 200_001).astype(np.float32)
    weights, _, _ = weigh(dots, 1.0, None, target)
    truth = np.exp(dots.astype(np.float64))
    assert np.abs(weights / truth - 1).max() < 3 * UNIT


@every_target
def test_a_weight_too_small_for_float32_is_zero(target):
    weights, prefix, _ = weigh(np.array([0, -88, -1e30, -3e38], np.float32), 1.0, None, target)
    np.testing.assert_array_equal(weights, [1, 0, 0, 0])
    assert prefix[0] == 1


@every_target
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n", [1, 5, 16, 64, 200])
def test_a_removed_item_weighs_nothing_and_the_others_keep_full_precision(target, biased, n):
    """A dot product of -inf marks a removed item: the dominating one, the first, or a full register of lanes."""
    dots, bias = normal(n, 3), normal(n, 4, 5.0) if biased else None
    padded = np.concatenate([np.full(33, -np.inf, np.float32), dots, np.full(40, -np.inf, np.float32)])
    padded_bias = None if bias is None else np.concatenate([np.full(33, 80, np.float32), bias, np.full(40, 80.0)])
    padded_bias = None if padded_bias is None else padded_bias.astype(np.float32)
    weights, _, total = weigh(padded, 0.01, padded_bias, target)
    alone, _, total_alone = weigh(dots, 0.01, bias, target)
    np.testing.assert_array_equal(weights[33 : 33 + n], alone)
    assert weights.sum() == pytest.approx(alone.sum(), rel=1e-6)
    assert (weights[:33] == 0).all()
    assert (weights[33 + n :] == 0).all()
    assert total == pytest.approx(total_alone, abs=1e-6)


@every_target
def test_cluster_masses_become_weights_and_an_empty_cluster_weighs_nothing(target):
    masses = np.concatenate([np.random.default_rng(0).normal(1e6, 5.0, 200), [-np.inf, -np.inf]])
    weights, prefix = np.empty(202, np.float32), np.empty(4)
    total = _native.weigh_masses(masses, weights, prefix, target)
    assert total == pytest.approx(reference.log_sum_exp(masses), abs=1e-6)
    assert (weights[-2:] == 0).all()
    np.testing.assert_allclose(weights, np.exp(masses - masses.max()), rtol=1e-5)


@every_target
@few
@given(n=st.integers(1, 400), seed=st.integers(0, 10**6), uniform=st.floats(0, 1, exclude_max=True))
def test_a_pick_agrees_with_the_cumulative_sum(target, n, seed, uniform):
    rng = np.random.default_rng(seed)
    weights = (rng.random(n) * (rng.random(n) < 0.4)).astype(np.float32)
    weights[rng.integers(n)] = 0.5
    chosen = _native.pick(weights, reference.prefix_sums(weights), uniform, target)
    cumulative = np.cumsum(weights.astype(np.float64))
    point = uniform * cumulative[-1]
    assert weights[chosen] > 0
    assert cumulative[chosen] - weights[chosen] - 1e-9 <= point <= cumulative[chosen] + 1e-9
    # Away from a boundary there is only one correct answer.
    if np.abs(cumulative - point).min() > 1e-9:
        assert chosen == reference.pick(weights, uniform)


@every_target
def test_a_pick_never_returns_an_item_of_weight_zero(target):
    weights = np.zeros(200, np.float32)
    weights[[70, 130]] = 1e-30, 1.0
    prefix = reference.prefix_sums(weights)
    for uniform in (0.0, 1e-300, 0.5, 1 - 2.0**-53, 1.0):
        assert _native.pick(weights, prefix, uniform, target) in (70, 130)


@every_target
@given(d=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_packed_products_and_square_sums_match_the_reference(target, d, seed):
    query = normal(d, seed)
    packed = np.empty(d * (d + 1) // 2, np.float32)
    _native.outer_product(query, packed, target)
    np.testing.assert_allclose(packed, reference.outer_product(query), rtol=2 * UNIT)
    sums = np.empty(5)
    dots, scales = integers(np.int32, (5, d), seed + 1), normal((5, d), seed + 2)
    _native.square_sums(dots, scales, sums, target)
    np.testing.assert_allclose(sums, reference.square_sums(dots, scales), rtol=1e-13)


def integers(kind, shape, seed):
    limits = np.iinfo(kind)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)


@every_target
@few
@given(n=st.integers(1, 40), d=st.integers(1, 140), b=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_the_error_of_a_scan_of_16_bit_integers_is_within_the_float32_bound(target, n, d, b, seed):
    rows, queries = integers(np.int16, (n, d), seed), normal((b, d), seed)
    dots = np.full((b, n), np.nan, np.float32)
    _native.scan_int16(rows, queries, dots, target)
    for query, scored in zip(queries, dots, strict=True):
        bound = _native.dot_error(d) * np.linalg.norm(rows.astype(float), axis=1) * np.linalg.norm(query.astype(float))
        assert (np.abs(scored - reference.scan(rows, query)) <= bound).all()


@every_target
@few
@given(n=st.integers(1, 40), d=st.integers(1, 140), b=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_a_scan_of_8_bit_integers_is_exact(target, n, d, b, seed):
    rows, queries = integers(np.int8, (n, d), seed), integers(np.int16, (b, d), seed)
    dots = np.empty((b, n), np.int32)
    _native.scan_int8(rows, queries, dots, target)
    np.testing.assert_array_equal(dots, queries.astype(np.int64) @ rows.astype(np.int64).T)


@pytest.mark.parametrize(
    ("key", "low", "high", "words"),
    [
        # Known answers of Philox 4x32-10, from the test vectors of its authors (Random123, kat_vectors).
        (0, 0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            0x299F31D0_A4093822,
            0x85A308D3_243F6A88,
            0x03707344_13198A2E,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_known_answers(key, low, high, words):
    assert _native.philox(key, low, high) == words
    assert reference.philox(key, low, high) == words


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_uniforms_match_the_reference_and_lie_in_the_unit_interval(key, stream, draw):
    first, second = _native.uniforms(key, stream, draw)
    assert (first, second) == reference.uniforms(key, stream, draw)
    assert 0 <= first < 1
    assert 0 <= second < 1


def test_uniforms_of_neighbouring_draws_and_streams_are_uniform_and_uncorrelated():
    """Mean and correlations of 20,000 uniforms within five standard errors: false alarm below 1e-5."""
    by_draw = np.array([_native.uniforms(1, 2, draw) for draw in range(20_000)])
    by_stream = np.array([_native.uniforms(1, stream, 0) for stream in range(20_000)])
    for sample in (by_draw, by_stream):
        assert np.abs(sample.mean(axis=0) - 0.5).max() < 5 * (1 / 12 / 20_000) ** 0.5
        centred = sample - 0.5
        assert abs((centred[:, 0] * centred[:, 1]).mean() * 12) < 5 / 20_000**0.5
        assert abs((centred[1:, 0] * centred[:-1, 0]).mean() * 12) < 5 / 20_000**0.5


@given(st.binary(max_size=64))
def test_the_hash_of_bytes_matches_the_reference(data):
    assert _native.hash_bytes(data) == reference.hash_bytes(data)


def test_hashes_of_similar_bytes_do_not_collide():
    values = [index.to_bytes(8, "little") * 3 for index in range(50_000)]
    assert len({_native.hash_bytes(value) for value in values}) == len(values)


def test_the_keyed_hash_is_siphash():
    """The vector that its authors published, for two rounds per word and four at the end."""
    key = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    assert reference.keyed_hash(key, bytes(range(15)), (2, 4)) == 0xA129CA6149BE45E5


@given(st.lists(st.binary(max_size=40), max_size=5), st.tuples(*[st.integers(0, 2**64 - 1)] * 2))
def test_hashes_of_strings_match_the_reference(parts, key):
    hashes = np.empty(len(parts), np.uint64)
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    _native.hash_strings(np.frombuffer(b"".join(parts), np.uint8), ends, np.array(key, np.uint64), hashes)
    assert hashes.tolist() == [reference.keyed_hash(key, part) for part in parts]


@pytest.mark.parametrize("kernel", ["scan", "weigh", "pick"])
def test_an_unknown_target_is_refused(kernel):
    arguments = {
        "scan": (np.ones((1, 1), np.float32), np.ones(1, np.float32), np.ones(1, np.float32)),
        "weigh": (np.ones(1, np.float32), 1.0, None, np.ones(1, np.float32), np.ones(1)),
        "pick": (np.ones(1, np.float32), np.ones(1), 0.5),
    }
    with pytest.raises(ValueError, match="no kernels named"):
        getattr(_native, kernel)(*arguments[kernel], "sse9")


def test_the_stub_has_the_names_of_the_module():
    body = ast.parse(Path(reference.__file__).with_name("_native.pyi").read_text()).body
    named = {node.name for node in body if hasattr(node, "name")}
    named |= {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    assert named == {name for name in dir(_native) if not name.startswith("_")}
