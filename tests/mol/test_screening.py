"""Bounds from a gate in sixteen bits: no score exceeds its bound, and searches with them find what others find."""

import numpy as np
import pytest
from made_similarities import assert_same, queries_of, similarity, truth, unit
from test_kernel import NONE, SHAPES, bounds, compiled, made, packed

from softindex.kernels import targets
from softindex.mol import Gate, SimilaritySpec, build, retrieval
from softindex.mol.reference import logits, scores, screened
from softindex.mol.score_errors import SINGLE
from softindex.mol.scorer import Scorer
from softindex.mol.screening import ScreenedGate, silu_of_integers

LARGEST = 20 * (1 + 1e-4)
"""Of the logits that `made` makes."""
GATED = [shape for shape in SHAPES if shape[0] * shape[1] > 1]


def bounded(spec, screen, items, queries, item_gates, query_gates, target):
    """Bounds as the kernel computes them."""
    native = compiled(spec, items, item_gates, target, **screen.arrays())
    found = np.empty((len(queries), len(items)), np.float32)
    slacks = np.full(len(queries), screen.slack, np.float32)
    native.bound(packed(spec, queries), query_gates, slacks, 2, found)
    return found


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("shape", GATED)
@pytest.mark.parametrize("crossed", [True, False])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_no_score_exceeds_its_bound(target, shape, crossed, scale):
    spec, items, queries, item_gates, query_gates = made(shape, crossed=crossed, scale=scale)
    screen = ScreenedGate.of(spec.gate, LARGEST, shape[2])
    found = bounded(spec, screen, items, queries, item_gates, query_gates, target)
    true = scores(spec, queries, items, query_gates, item_gates)
    error = bounds(spec, queries, items, query_gates, item_gates, SINGLE).score
    assert (true <= found + error[:, None]).all()
    pair_logits = logits(spec, queries, items)
    assert (true <= screened(spec, screen, pair_logits, query_gates, item_gates) + 1e-9).all()
    if scale < 30 and shape == (8, 4, 32, 128, 300):
        # Close enough to be of use: scores lie between -20 and 20.
        assert (found - true).max() < 2.5 * scale


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("shape", GATED)
def test_the_kernel_computes_what_the_reference_says(target, shape):
    spec, items, queries, item_gates, query_gates = made(shape)
    screen = ScreenedGate.of(spec.gate, LARGEST, shape[2])
    found = bounded(spec, screen, items, queries, item_gates, query_gates, target)
    expected = screened(spec, screen, logits(spec, queries, items), query_gates, item_gates)
    # A logit that lies between two integers may be rounded either way, which moves a score by less than the slack.
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02)
    assert np.median(np.abs(found - expected)) < 1e-4


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1)])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_largest_logits_and_weights_of_one_sign_do_not_overflow(target, signs, size):
    """All logits are as large as they may be and all weights add up: sums come as close to 2^31 as they can."""
    spec, *_ = made((4, 4, 6, 40, 50))
    rng = np.random.default_rng(3)
    weights = [np.abs(rng.standard_normal(np.shape(getattr(spec.gate, name)))) for name in Gate.__dataclass_fields__]
    first, first_bias, second, second_bias = (size * values.astype(np.float32) for values in weights)
    gate = Gate(signs[0] * first, signs[0] * first_bias, signs[1] * second, second_bias)
    spec = type(spec)(**{**{name: getattr(spec, name) for name in spec.__slots__}, "gate": gate, "item_gates": False})
    direction = unit(rng.standard_normal((1, 1, 6)))
    queries, items = np.repeat(direction, 4, axis=1), np.repeat(np.repeat(direction, 4, axis=1), 50, axis=0)
    items[::2, 1:] *= -1
    screen = ScreenedGate.of(gate, LARGEST, 6)
    sums = np.abs(screen.first.astype(np.int64)).sum(axis=1) * 32767 + np.abs(screen.first_bias)
    assert 2**29 < sums.max() < 2**31
    found = bounded(spec, screen, items, queries, None, None, target)
    true = scores(spec, queries, items)
    assert (true <= found + bounds(spec, queries, items, None, None, SINGLE).score[:, None]).all()
    np.testing.assert_allclose(found, screened(spec, screen, logits(spec, queries, items)), rtol=1e-3, atol=0.02)


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("d", [2048, 8192])
def test_a_logit_that_rounding_makes_larger_does_not_overflow(target, d):
    """Each of thousands of small products is rounded up when it is added to one large product."""
    small = 2.0**-12 * 1.0001
    query = np.full((1, 1, d), small, np.float32)
    query[..., 0] = np.sqrt(1 - (d - 1) * small**2)
    items = np.stack([query[0, 0], -0.9 * query[0, 0]])[None]
    items[0, 0, 0] = np.nextafter(1 / query[0, 0, 0], np.float32(2), dtype=np.float32)  # the first product is above 1
    # The gate gives nearly all weight to the first component if its logit is positive, and to the second if not.
    first = np.array([[0.5, 0], [-0.5, 0], [0, 0.5], [0, -0.5]], np.float32)
    second = np.array([[0.4, -0.4, 0, 0], [0, 0, 0.4, -0.4]], np.float32)
    gate = Gate(first, np.zeros(4, np.float32), second, np.zeros(2, np.float32))
    spec = SimilaritySpec(1, 2, d, 1 / 16, False, gate, None, False)
    screen = ScreenedGate.of(gate, 16 * float(np.linalg.norm(items.astype(float), axis=2).max()), d)
    found = bounded(spec, screen, items, query, None, None, target)
    assert scores(spec, query, items)[0, 0] <= found[0, 0] + bounds(spec, query, items, None, None, SINGLE).score[0]


@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-30, 1e20, 1e25])
def test_logits_of_any_size_are_searched(size, monkeypatch):
    """Their squares may overflow, and the scale that turns them into integers too."""
    model = similarity("logits", 1500, parts=(3, 2), d=6)
    model.components = unit(np.random.default_rng(5).standard_normal((1500, 2, 6))) * np.float32(min(size, 1))
    known = {name: getattr(model.known, name) for name in model.known.__slots__}
    flat = Gate(*(0 * getattr(model.known.gate, name) for name in ("first", "first_bias", "second", "second_bias")))
    known |= {"gate": flat, "temperature": min(0.1, 1 / size) if size > 1 else 0.1, "normalised": False}
    model.known = SimilaritySpec(**known)
    made_index, queries = build(model, np.arange(1500)), queries_of(model)
    found = made_index.top_k(queries, 5, method="brute-force")
    assert_same(searched(made_index, queries, False, monkeypatch, k=5), found)
    np.testing.assert_allclose(found.scores, np.sort(truth(model, queries), axis=1)[:, ::-1][:, :5], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 0.03, 1.0, 30.0, 440.0, 3000.0, 40_000.0])
def test_activations_in_integers_are_close_to_those_of_real_numbers(scale):
    gate = Gate(
        np.full((1, 2), 32767 * (1 - 2**-6) / (40 * scale), np.float32),
        np.zeros(1, np.float32),
        np.ones((2, 1), np.float32),
        np.zeros(2, np.float32),
    )
    screen = ScreenedGate.of(gate, 20.0, 8)
    x = np.arange(-32768, 32768)
    found = silu_of_integers(x, screen.bases, screen.slopes, screen.steps)
    assert np.abs(found).max() < 2**15
    # Units per number: what the first layer turns logits of 20 into.
    units = (screen.first.astype(float).sum() * 20 * screen.scales[0] / 2**16) / (gate.first.astype(float).sum() * 20)
    exact = x / (1 + np.exp(np.minimum(-x / units, 700)))
    assert np.abs(found - exact).max() < max(2.0, 0.006 * units)


def test_a_gate_that_is_too_steep_has_no_useful_bounds():
    calm, steep = (made((8, 4, 32, 128, 1), scale=scale)[0].gate for scale in (0.5, 10.0))
    assert ScreenedGate.of(calm, LARGEST, 32).useful(20.0)
    assert not ScreenedGate.of(steep, LARGEST, 32).useful(20.0)


def searched(made_index, queries, screened_, monkeypatch, **options):
    """The best items with a screen on any CPU, or without one."""
    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "screens", lambda scorer, batch: np.full(len(batch), screened_))
        return made_index.top_k(queries, method="brute-force", **options)


@pytest.mark.parametrize("kind", ["mixture", "logits"])
@pytest.mark.parametrize("k", [1, 10, 60])
def test_a_screen_changes_no_result_and_no_proof(kind, k, monkeypatch):
    model = similarity(kind, 6000, parts=(4, 3), d=8, scale=0.5)
    rows = np.concatenate([np.arange(6000), np.arange(0, 6000, 40)])  # copies of items are ties
    made_index, queries = build(model, rows), queries_of(model, 20)
    for options in ({}, {"exclude": np.arange(0, 6000, 7)}, {"threads": 1}):
        plain = searched(made_index, queries, False, monkeypatch, k=k, **options)
        found = searched(made_index, queries, True, monkeypatch, k=k, **options)
        assert_same(plain, found)
        assert_same(found, searched(made_index, queries[3], True, monkeypatch, k=k, **options), 3)
    true = truth(model, queries)
    best = np.sort(true[:, rows], axis=1)[:, ::-1][:, :k]
    np.testing.assert_allclose(searched(made_index, queries, True, monkeypatch, k=k).scores, best, rtol=1e-12)


def test_queries_that_a_screen_does_not_settle_are_searched_without_it(monkeypatch):
    model = similarity("logits", 3000, parts=(4, 3), d=8, scale=0.5)
    made_index, queries = build(model, np.arange(3000)), queries_of(model, 20)
    plain = searched(made_index, queries, False, monkeypatch, k=10)
    calls = []
    best = Scorer.best
    monkeypatch.setattr(Scorer, "best", lambda self, batch, *rest: calls.append(len(batch)) or best(self, batch, *rest))
    monkeypatch.setattr(retrieval, "_screen_width", lambda k, n: k)
    assert_same(plain, searched(made_index, queries, True, monkeypatch, k=10))
    assert sum(calls) >= 15


@pytest.mark.parametrize("target", targets())
def test_the_best_are_among_the_scored_and_no_other_bound_is_higher(target):
    spec, items, queries, item_gates, query_gates = made((4, 4, 8, 24, 900))
    screen = ScreenedGate.of(spec.gate, LARGEST, 8)
    native = compiled(spec, items, item_gates, target, **screen.arrays())
    slacks, margins = np.full(5, screen.slack, np.float32), np.full(5, 1e-3, np.float32)
    everything = np.empty((5, 900), np.float32)
    native.bound(packed(spec, queries), query_gates, slacks, 1, everything)
    positions, values, outside = np.empty((5, 80), np.int64), np.empty((5, 80), np.float32), np.empty(5, np.float32)
    native.best_screened(
        packed(spec, queries), query_gates, *NONE, 10, 400, slacks, margins, 2, positions, values, outside
    )
    true = scores(spec, queries, items, query_gates, item_gates)
    for q in range(5):
        count = np.isfinite(values[q]).sum()
        assert (positions[q, count:] == -1).all()
        np.testing.assert_allclose(values[q, :count], true[q, positions[q, :count]], atol=1e-3)
        np.testing.assert_array_equal(np.sort(positions[q, :10]), np.sort(np.argsort(-true[q])[:10]))
        # Items are scored in the order of their bounds, so those above `outside` were.
        assert outside[q] + 1e-3 <= values[q, 9]
        scored = np.flatnonzero(everything[q] > outside[q])
        assert np.isin(positions[q, :10], scored).all()
