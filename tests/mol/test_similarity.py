"""The torch modules: the published formula, and an index that scores as they do."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from made_similarities import load  # noqa: E402

from softindex.errors import InputError  # noqa: E402
from softindex.mol import (  # noqa: E402
    ComponentPooling,
    DotProduct,
    MaxSim,
    MixtureOfLogits,
    build,
    mutual_information_loss,
)
from softindex.mol.queries import encode  # noqa: E402
from softindex.mol.reference import scores  # noqa: E402


def mixture(dims=(10, 12), **options):
    torch.manual_seed(0)
    settings = {"query_components": 4, "item_components": 3, "component_dim": 8, "hidden": 32, "gate_hidden": 16}
    return MixtureOfLogits(*dims, **{**settings, **options})


def inputs(b=5, m=40, users=False):
    rng = np.random.default_rng(0)
    queries, items = rng.standard_normal((b, 10)).astype(np.float32), rng.standard_normal((m, 12)).astype(np.float32)
    return torch.tensor(queries), torch.tensor(items), torch.arange(b) * 7 if users else None


@pytest.mark.parametrize("options", [{}, {"gates": "logits"}, {"users": 6}, {"query_components": 1}])
def test_an_index_scores_as_the_module_does(tmp_path, options):
    model = mixture(**options).eval()
    queries, items, users = inputs(users="users" in options)
    with torch.no_grad():
        expected = model(queries, items, users).double().numpy()
    build(model, items).save(tmp_path / "kept")
    found = load(tmp_path / "kept").top_k(queries, 40, users=users)
    np.testing.assert_allclose(found.scores, np.take_along_axis(expected, found.ids, 1), rtol=1e-4, atol=1e-3)
    assert found.proven.all()


def test_the_module_in_double_is_the_reference():
    model = mixture().eval()
    queries, items, _ = inputs()
    spec, side = model.spec(), model.item_side(items)
    encoded = encode(spec, queries.numpy())
    with torch.no_grad():
        expected = model.double()(queries.double(), items.double()).numpy()
    made = scores(spec, encoded.components, side.components, encoded.gates, side.gates)
    np.testing.assert_allclose(made, expected, atol=2e-5)


def test_items_of_each_query_are_scored_like_shared_ones():
    model = mixture().eval()
    queries, items, _ = inputs()
    shared, weights = model(queries, items, with_weights=True)
    own, own_weights = model(queries, items.expand(5, -1, -1), with_weights=True)
    torch.testing.assert_close(shared, own, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weights, own_weights, rtol=1e-4, atol=1e-4)


def test_weights_are_convex_and_scores_within_the_logits():
    for training in (False, True):
        model = mixture().train(training)
        queries, items, _ = inputs()
        found, weights = model(queries, items, with_weights=True)
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(5, 40))
        assert (found.abs() <= 1 / model.temperature + 1e-3).all()


def test_dropout_acts_in_training_only():
    model, (queries, items, _) = mixture(), inputs()
    assert not torch.equal(model.train()(queries, items), model.train()(queries, items))
    assert torch.equal(model.eval()(queries, items), model.eval()(queries, items))
    np.testing.assert_array_equal(model.train().item_side(items).components, model.eval().item_side(items).components)


def test_every_weight_is_trained():
    model = mixture(users=5).train()
    queries, items, users = inputs(users=True)
    found, weights = model(queries, items, users, with_weights=True)
    (found.logsumexp(dim=1).mean() + mutual_information_loss(weights)).backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_the_load_balancing_loss_is_least_where_loads_are_even_and_choices_sharp():
    pairs = 6
    sharp = torch.eye(pairs)
    torch.testing.assert_close(mutual_information_loss(sharp), torch.tensor(-np.log(pairs), dtype=torch.float32))
    even = torch.full((10, pairs), 1 / pairs)
    torch.testing.assert_close(mutual_information_loss(even), torch.tensor(0.0))
    collapsed = sharp[:1].expand(10, -1)
    torch.testing.assert_close(mutual_information_loss(collapsed), torch.tensor(0.0))
    mixed = torch.softmax(torch.randn(4, 7, pairs), dim=-1)
    assert -np.log(pairs) <= mutual_information_loss(mixed) <= 0


def test_the_loss_has_gradients_where_weights_are_zero():
    weights = torch.eye(3).requires_grad_()
    mutual_information_loss(weights).backward()
    assert torch.isfinite(weights.grad).all()


def test_training_lowers_the_loss():
    torch.manual_seed(0)
    queries, items = torch.eye(10), torch.eye(12)[:10]
    model = MixtureOfLogits(10, 12, query_components=2, item_components=2, component_dim=4, hidden=16, gate_hidden=16)
    optimiser, losses = torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(150):
        found, weights = model(queries, items, with_weights=True)
        loss = torch.nn.functional.cross_entropy(found, torch.arange(10)) + 0.001 * mutual_information_loss(weights)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.3 * losses[0]


@pytest.mark.parametrize("normalised", [False, True])
def test_dot_products_are_searched_like_mixtures(normalised):
    model = DotProduct(6, temperature=0.5, normalised=normalised)
    queries, items = torch.randn(4, 6), torch.randn(30, 6)
    given = torch.nn.functional.normalize(queries, dim=-1) if normalised else queries
    expected = model(queries, items).double().numpy()
    found = build(model, items).top_k(given, 30)
    np.testing.assert_allclose(found.scores, np.take_along_axis(expected, found.ids, 1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(queries, items.expand(4, -1, -1)), model(queries, items))


def test_max_sim_is_searched_like_a_mixture():
    model = MaxSim(3, 5, 6, temperature=0.5)
    queries, items = torch.nn.functional.normalize(torch.randn(4, 3, 6), dim=-1), torch.randn(30, 5, 6)
    expected = model(queries, items).double().numpy()
    made = build(model, items)
    for method in ("exact", "two-pass", "average"):
        found = made.top_k(queries, 30, method=method)
        np.testing.assert_allclose(found.scores, np.take_along_axis(expected, found.ids, 1), rtol=1e-4, atol=1e-4)
        assert found.proven.all()


def test_pooling_gives_components_of_length_one_that_padding_does_not_change():
    torch.manual_seed(0)
    pooling = ComponentPooling(16, 3, 8)
    text, mask = torch.randn(4, 9, 16), torch.ones(4, 9)
    states, full_mask = pooling.insert(text, mask)
    assert states.shape == (4, 12, 16)
    assert full_mask.shape == (4, 12)
    components = pooling(states, full_mask)
    assert components.shape == (4, 3, 8)
    torch.testing.assert_close(components.norm(dim=-1), torch.ones(4, 3))
    padded = torch.cat([states, torch.randn(4, 5, 16)], dim=1)
    longer = torch.cat([full_mask, torch.zeros(4, 5)], dim=1)
    torch.testing.assert_close(pooling(padded, longer), components)
    components.sum().backward()
    assert all(weight.grad is not None for weight in (*pooling.mixer.parameters(), *pooling.project.parameters()))


def test_a_mixture_without_dimensions_takes_components_of_a_text(tmp_path):
    torch.manual_seed(0)
    pooling = ComponentPooling(12, 3, 8)
    with torch.no_grad():
        made = pooling(*pooling.insert(torch.randn(30, 5, 12), torch.ones(30, 5)))
    model = mixture(dims=(None, None), query_components=3, gates="logits").eval()
    with torch.no_grad():
        expected = model(made[:4], made).double().numpy()
        own = model(made[:4], made.expand(4, -1, -1, -1)).double().numpy()
    np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-3)
    build(model, made).save(tmp_path / "kept")
    found = load(tmp_path / "kept").top_k(made[:4].numpy(), 30)
    np.testing.assert_allclose(found.scores, np.take_along_axis(expected, found.ids, 1), rtol=1e-4, atol=1e-3)
    with pytest.raises(InputError, match=r"expected components \(\.\.\., 3, 8\)"):
        model(made[:, :2], made)
    with pytest.raises(InputError, match="gates='logits'"):
        mixture(dims=(None, 12))
    with pytest.raises(InputError, match="leave users out"):
        mixture(dims=(None, 12), gates="logits", users=4)
    with pytest.raises(InputError, match="mask that insert returned"):
        pooling(torch.randn(2, 8, 12), torch.ones(2, 5))


def test_bad_settings_are_refused():
    for options in (
        {"gates": "some"},
        {"query_components": 0},
        {"temperature": 0.0},
        {"query_components": 1, "users": 3},
        {"dims": (0, 12)},
        {"hidden": 0},
        {"gate_hidden": -1},
        {"item_dropout": 2.0},
        {"user_dropout": "x"},
        {"weight_dropout": True},
    ):
        with pytest.raises(InputError):
            mixture(**options)
    queries, items, users = inputs(users=True)
    with pytest.raises(InputError, match="users"):
        mixture()(queries, items, users)
    with pytest.raises(InputError, match="users"):
        mixture(users=3)(queries, items)
    for wrong in (items[:, :5], items[0], [["a"]], {"a": 1}):
        with pytest.raises(InputError, match="items"):
            build(mixture(), wrong)
    with pytest.raises(InputError, match="queries have shape"):
        mixture()(queries[:, :3], items)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_users_are_integers_of_any_size(dtype):
    model = mixture(users=3).eval()
    queries, items, users = inputs(users=True)
    torch.testing.assert_close(model(queries, items, users.to(dtype)), model(queries, items, users % 3))


def test_other_users_are_refused():
    model = mixture(users=3)
    queries, items, users = inputs(users=True)
    for wrong, words in (
        (users.tolist(), "users are .*; expected a tensor of integers"),
        (users.numpy(), "users are .*; expected a tensor of integers"),
        (users.float(), "users are torch.float32; expected a tensor of integers"),
        (users > 0, "users are torch.bool; expected a tensor of integers"),
        (users[:4], r"users have shape \(4,\); expected \(5,\), one for each query\.$"),
        (users[:1], r"users have shape \(1,\)"),
        (users[0], r"users have shape \(\)"),
        (users[:, None], r"users have shape \(5, 1\); expected \(5,\)"),
    ):
        with pytest.raises(InputError, match=words):
            model(queries, items, wrong)
    with pytest.raises(InputError, match=r"expected \(5, 2\), one for each query, or \(5,\) for one user in each row"):
        model(queries[:, None].expand(-1, 2, -1), items, users[:, None])


def test_the_load_balancing_loss_refuses_what_is_no_weights():
    weights = torch.softmax(torch.randn(4, 6), dim=-1)
    for wrong, positives, words in (
        (weights.numpy(), None, "weights are .*; expected a tensor"),
        (weights.sum(), None, r"shape \(\); expected floats \(\.\.\., P\)"),
        (weights[:, :0], None, r"shape \(4, 0\); expected floats"),
        (weights.long(), None, "weights are torch.int64"),
        (weights, [0, 1, 2, 3], "positives are .*; expected a tensor of integers"),
        (weights, torch.ones(4, dtype=torch.bool), "positives are torch.bool"),
    ):
        with pytest.raises(InputError, match=words):
            mutual_information_loss(wrong, positives)


def test_half_precision_can_be_built():
    queries, items, _ = inputs()
    model = mixture().eval()
    expected = build(model, items).top_k(queries, 40)
    found = build(model.to(torch.bfloat16), items.to(torch.bfloat16)).top_k(queries, 40)
    assert found.proven.all()
    assert np.abs(np.sort(found.scores) - np.sort(expected.scores)).max() < 2
