"""The three products answer the same questions in the same words."""

import inspect
import pickle

import numpy as np
import pytest
import torch

import softindex
from softindex import mol
from softindex.records import Draws, Estimate, TopK

N, D = 400, 24
VECTORS = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
QUERIES = np.random.default_rng(1).standard_normal((3, D)).astype(np.float32)


def make_mixture_index():
    torch.manual_seed(0)
    similarity = mol.DotProduct(D).eval()
    return mol.build(similarity, VECTORS)


PRODUCTS = {
    "Index": lambda: softindex.build(VECTORS),
    "MixtureIndex": make_mixture_index,
    "AdaptiveSoftmax": lambda: softindex.AdaptiveSoftmax(VECTORS),
}


@pytest.fixture(params=PRODUCTS, scope="module")
def product(request):
    return PRODUCTS[request.param]()


def with_temperature(function):
    needed = "temperature" in inspect.signature(function).parameters
    return {"temperature": 0.5} if needed else {}


SHARED = ("queries", "n", "k", "temperature", "exclude", "allow", "seed", "threads", "top_p", "method")
POSITIONAL = {"sample": ["queries", "n"], "log_prob": ["queries", "ids"], "log_partition": ["queries"]}
POSITIONAL |= {"top_k": ["queries", "k"], "save": ["path"]}
CLASSES = (softindex.Index, mol.MixtureIndex, softindex.AdaptiveSoftmax)


@pytest.mark.parametrize("name", POSITIONAL)
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_same_question_has_the_same_positional_words(kind, name):
    if not hasattr(kind, name):
        assert (kind, name) == (mol.MixtureIndex, "log_partition")
        return
    parameters = list(inspect.signature(getattr(kind, name)).parameters.values())[1:]
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional == POSITIONAL[name]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_temperature_is_required_wherever_probabilities_come_out(kind):
    for name in ("sample", "log_prob", "log_partition", "nucleus"):
        if hasattr(kind, name):
            assert inspect.signature(getattr(kind, name)).parameters["temperature"].default is inspect.Parameter.empty


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("word", ["log_q", "delta", "x", "m", "t"])
def test_no_product_has_a_word_of_its_own_for_a_shared_idea(kind, word):
    for name, function in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            assert word not in inspect.signature(function).parameters


def test_draws_are_one_record(product):
    draws = product.sample(QUERIES, 4, temperature=0.5, seed=3)
    assert isinstance(draws, Draws)
    assert draws.ids.shape == draws.log_prob.shape == (3, 4)
    assert np.shape(draws.error) == np.shape(draws.items_scored) == (3,)
    assert draws.seed == 3
    with pytest.raises(TypeError):
        iter(draws)
    with pytest.raises(TypeError):
        draws[:2]


def test_one_query_gives_results_without_a_row_axis(product):
    draws = product.sample(QUERIES[1], 4, temperature=0.5, seed=3)
    assert draws.ids.shape == draws.log_prob.shape == (4,)
    assert np.ndim(draws.error) == np.ndim(draws.items_scored) == 0
    batch = product.sample(QUERIES, 4, temperature=0.5, seed=3)
    np.testing.assert_array_equal(draws.ids, batch.ids[1])
    best = product.top_k(QUERIES[1], 5, **with_temperature(product.top_k))
    assert best.ids.shape == best.scores.shape == best.proven.shape == (5,)
    assert np.ndim(best.gap) == 0


def test_the_best_items_are_proven_and_those_of_brute_force(product):
    best = product.top_k(QUERIES, 6, **with_temperature(product.top_k))
    assert isinstance(best, TopK)
    truth = VECTORS.astype(np.float64) @ QUERIES.T.astype(np.float64)
    np.testing.assert_array_equal(best.ids, np.argsort(-truth.T, axis=1)[:, :6])
    assert best.proven.all()
    assert (np.asarray(best.gap) == 0).all()
    order = np.argsort(-np.asarray(best.scores), axis=1)
    np.testing.assert_array_equal(order, np.tile(np.arange(6), (3, 1)))


def test_excluded_items_are_neither_drawn_nor_returned(product):
    options = with_temperature(product.top_k)
    first = product.top_k(QUERIES, 3, **options).ids
    shared = first[0].tolist()
    assert not np.isin(product.sample(QUERIES, 200, temperature=0.5, exclude=shared, seed=0).ids, shared).any()
    rows = [row.tolist() for row in first]
    best = product.top_k(QUERIES, 3, exclude=rows, **options)
    for row, excluded in zip(best.ids, rows, strict=True):
        assert not set(row.tolist()) & set(excluded)


def test_only_allowed_items_are_drawn_and_returned(product):
    options = with_temperature(product.top_k)
    shared, rows = np.arange(5, 25), [[1, 2, 3, 4], None, np.arange(0, 400, 3)]
    draws = product.sample(QUERIES, 200, temperature=0.5, allow=shared, exclude=[7, 8], seed=0)
    assert set(draws.ids.ravel().tolist()) <= set(range(5, 25)) - {7, 8}
    best = product.top_k(QUERIES, 3, allow=rows, **options)
    scores = QUERIES.astype(np.float64) @ VECTORS.T.astype(np.float64)
    for row, allowed in enumerate(rows):
        among = np.arange(N) if allowed is None else np.array(allowed)
        np.testing.assert_array_equal(best.ids[row], among[np.argsort(-scores[row, among])[:3]])
    mask = np.isin(np.arange(N) if not hasattr(product, "ids") else product.ids, shared)
    again = product.sample(QUERIES, 200, temperature=0.5, allow=mask, exclude=[7, 8], seed=0)
    np.testing.assert_array_equal(draws.ids, again.ids)
    with pytest.raises(softindex.InputError, match=r"leave|are left"):
        product.sample(QUERIES, temperature=0.5, allow=[7], exclude=[7])
    with pytest.raises(softindex.UnknownIdError):
        product.sample(QUERIES, temperature=0.5, allow=[7, N])
    law = product.log_prob(QUERIES, np.arange(N), temperature=0.5, allow=shared)
    np.testing.assert_allclose(np.exp(law).sum(axis=1), 1.0, atol=1e-4)
    assert np.isneginf(law[:, :5]).all()


def test_the_same_seed_gives_the_same_draws_after_saving(product, tmp_path):
    product.save(tmp_path / "saved")
    loaded = softindex.load(tmp_path / "saved", verify=True)
    assert type(loaded) is type(product)
    before, after = (one.sample(QUERIES, 5, temperature=0.5, seed=9) for one in (product, loaded))
    np.testing.assert_array_equal(before.ids, after.ids)


def test_probabilities_are_those_of_the_softmax(product):
    adaptive = isinstance(product, softindex.AdaptiveSoftmax)
    options = {"guarantee": "exact"} if adaptive else {"method": "exact"}
    ids = np.arange(N)
    log_prob = product.log_prob(QUERIES, ids, temperature=0.5, **options)
    logits = QUERIES.astype(np.float64) @ VECTORS.T.astype(np.float64) / 0.5
    log_z = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
    np.testing.assert_allclose(log_prob, logits - log_z[:, None], atol=1e-4)
    if not hasattr(product, "log_partition"):
        return
    estimate = product.log_partition(QUERIES, temperature=0.5, **options)
    assert isinstance(estimate, Estimate)
    np.testing.assert_allclose(estimate.value, log_z, atol=1e-4)
    assert (estimate.low <= log_z).all()
    assert (log_z <= estimate.high).all()


def test_no_product_is_pickled(product):
    with pytest.raises(TypeError, match=r"softindex\.load"):
        pickle.dumps(product)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_a_bias_is_divided_by_the_temperature_and_a_log_bias_is_not(seed, temperature):
    rng = np.random.default_rng(seed)
    bias, log_bias = (rng.standard_normal(N).astype(np.float32) for _ in range(2))
    logits = (QUERIES.astype(np.float64) @ VECTORS.T.astype(np.float64) + bias) / temperature + log_bias
    truth = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
    index = softindex.build(VECTORS, bias=bias, log_bias=log_bias)
    layer = softindex.AdaptiveSoftmax(VECTORS, bias, log_bias=log_bias)
    ids = np.arange(N)
    found = index.log_prob(QUERIES, ids, temperature=temperature, method="exact")
    np.testing.assert_allclose(found, truth, atol=2e-4)
    found = layer.log_prob(QUERIES, ids, temperature=temperature, guarantee="exact")
    np.testing.assert_allclose(found, truth, atol=2e-4)
    best = index.top_k(QUERIES, 5, temperature=temperature)
    np.testing.assert_array_equal(best.ids, np.argsort(-truth, axis=1)[:, :5])
    np.testing.assert_allclose(best.scores, np.sort(logits, axis=1)[:, :-6:-1] * temperature, rtol=1e-5, atol=1e-4)


def test_an_index_with_a_bias_keeps_it_through_saving_and_shows_it(tmp_path):
    bias = np.random.default_rng(5).standard_normal(N).astype(np.float32)
    index = softindex.build(VECTORS, bias=bias, codes=True, tree=True)
    index.save(tmp_path / "index")
    loaded = softindex.load(tmp_path / "index")
    assert loaded.dim == D
    np.testing.assert_array_equal(loaded.items.bias, bias[loaded.ids])
    np.testing.assert_array_equal(loaded.items.vectors, VECTORS[loaded.ids])
    for method in ("sd-2ls", "certified", "sd-hierarchical"):
        before, after = (one.sample(QUERIES, 5, temperature=0.3, method=method, seed=1) for one in (index, loaded))
        np.testing.assert_array_equal(before.ids, after.ids)
    audit = index.audit(QUERIES, temperatures=[0.3], methods=["exact", "certified"])
    assert all(row.kl.value < 1e-6 for row in audit.rows)


def test_a_huge_number_of_draws_is_refused_in_a_sentence(product):
    with pytest.raises(softindex.InputError, match="do not fit into memory"):
        product.sample(QUERIES, 10**13, temperature=0.5)


def test_none_for_every_query_excludes_nothing(product):
    before, after = (
        product.sample(QUERIES, 5, temperature=0.5, exclude=exclude, seed=2) for exclude in (None, [None] * 3)
    )
    np.testing.assert_array_equal(before.ids, after.ids)


def test_many_draws_from_few_classes_take_one_round():
    layer = softindex.AdaptiveSoftmax(VECTORS[:3])
    draws = layer.sample(QUERIES[0], 200_000, temperature=5.0, seed=0)
    expected = np.exp(layer.log_prob(QUERIES[0], [0, 1, 2], temperature=5.0, guarantee="exact"))
    frequencies = np.bincount(draws.ids, minlength=3) / 200_000
    # Five standard deviations: a false alarm in a million.
    assert np.abs(frequencies - expected).max() < 5 * 0.5 / np.sqrt(200_000)
    assert layer.log_prob(QUERIES[0], [], temperature=1.0).shape == (0,)
