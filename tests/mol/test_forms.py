"""Forms of the similarity: paired components, queries of any shape, and pooling of texts."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from softindex.errors import InputError  # noqa: E402
from softindex.mol import ComponentPooling, MixtureOfLogits, build, mutual_information_loss  # noqa: E402
from softindex.mol.reference import silu  # noqa: E402
from softindex.train import Negatives, UniformSampler, sampled_cross_entropy  # noqa: E402


def mixture(dims=(10, 12), **options):
    torch.manual_seed(0)
    settings = {"query_components": 4, "item_components": 4, "component_dim": 5, "hidden": 32, "gate_hidden": 16}
    return MixtureOfLogits(*dims, **{**settings, **options})


def linear(layer, rows):
    return rows @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()


def two_layers(layers, rows):
    return linear(layers[2], silu(linear(layers[0], rows)))


def paired_scores(model, queries, items):
    """sum_p pi_p <f_p(q), g_p(x)> / temperature in float64, as in the first equation of the paper."""
    first, second = np.split(linear(model.query_hidden, queries), 2, axis=1)
    f = linear(model.query_out, silu(first) * second).reshape(len(queries), 4, 5)
    g = linear(model.item_out, items).reshape(len(items), 4, 5)
    logits = np.einsum("bpd,mpd->bmp", f, g) / model.temperature
    z = two_layers(model.logit_gate, logits)
    z = z + two_layers(model.query_gate, queries)[:, None] * two_layers(model.item_gate, items)
    weights = np.exp(silu(z))
    return (weights / weights.sum(axis=2, keepdims=True) * logits).sum(axis=2)


def test_paired_components_meet_only_their_own():
    model = mixture(pairing="paired", temperature=0.5).eval()
    random = np.random.default_rng(0)
    queries, items = random.standard_normal((6, 10)), random.standard_normal((60, 12))
    wanted = paired_scores(model, queries, items)
    with torch.no_grad():
        scores = model.double()(torch.tensor(queries), torch.tensor(items)).numpy()
        own = model(torch.tensor(queries), torch.tensor(items).expand(6, -1, -1)).numpy()
    np.testing.assert_allclose(scores, wanted, atol=1e-9)
    np.testing.assert_allclose(own, wanted, atol=1e-9)
    index = build(model.float(), items.astype(np.float32))
    for method in ("exact", "brute-force", "two-pass"):
        found = index.top_k(queries.astype(np.float32), 9, method=method)
        np.testing.assert_allclose(found.scores, -np.sort(-wanted, axis=1)[:, :9], atol=1e-3)
        assert found.proven.all()
    drawn = index.log_prob(queries.astype(np.float32), np.arange(60), temperature=1.0)
    np.testing.assert_allclose(drawn, wanted - np.logaddexp.reduce(wanted, axis=1, keepdims=True), atol=1e-3)


def test_the_average_of_paired_components_is_that_of_the_pairs():
    """The first stage ranks by the mean of the P logits, and by no product of other components."""
    model = mixture(dims=(None, None), pairing="paired", gates="logits").eval()
    queries, items = torch.randn(3, 4, 5), torch.randn(50, 4, 5)
    index = build(model, items)
    mean = torch.einsum("bpd,mpd->bm", queries, items) / 4
    found = index.average_queries(queries.flatten(1)) @ index.averages.T
    np.testing.assert_allclose(found, mean.numpy(), atol=1e-5)
    with torch.no_grad():
        wanted = model(queries, items).double().numpy()
    best = index.top_k(queries.flatten(1), 50)
    np.testing.assert_allclose(best.scores, np.take_along_axis(wanted, best.ids, 1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("options", [{"pairing": "some"}, {"pairing": "paired", "query_components": 3},
                                     {"pairing": "paired", "users": 5}])  # fmt: skip
def test_pairs_that_cannot_be_are_refused(options):
    with pytest.raises(InputError, match="pairing"):
        mixture(**options)


@pytest.mark.parametrize("pairing", ["all", "paired"])
@pytest.mark.parametrize("users", [None, 7])
def test_queries_may_have_any_leading_axes(pairing, users):
    if users is not None and pairing == "paired":
        return
    model = mixture(pairing=pairing, users=users).eval()
    queries, items, own = torch.randn(2, 3, 10), torch.randn(8, 12), torch.randn(2, 3, 4, 12)
    numbers = None if users is None else torch.tensor([3, 9])
    each = None if users is None else numbers[:, None].expand(2, 3)
    with torch.no_grad():
        for given in (items, own):
            scores, weights = model(queries, given, numbers, with_weights=True)
            flat = given if given is items else given.flatten(0, 1)
            one, other = model(queries.flatten(0, 1), flat, None if each is None else each.flatten(), with_weights=True)
            torch.testing.assert_close(scores, one.view(2, 3, -1))
            torch.testing.assert_close(weights, other.view(2, 3, *other.shape[1:]))
        with pytest.raises(InputError, match="leading axes"):
            model(queries, own[:, :2], numbers)


def test_a_module_is_no_tensor_of_items():
    with pytest.raises(InputError, match="expected a tensor"):
        mixture()(torch.randn(3, 10), torch.nn.Embedding(5, 12))
    with pytest.raises(InputError, match="items"):
        build(mixture(), torch.nn.Linear(12, 5))


def test_targets_of_minus_100_do_not_count():
    torch.manual_seed(0)
    weights = torch.softmax(torch.randn(2, 3, 1, 6), -1)
    positives = torch.tensor([[4, -100, 2], [-100, 9, 1]])
    kept = positives != -100
    torch.testing.assert_close(mutual_information_loss(weights, positives), mutual_information_loss(weights[kept]))
    assert mutual_information_loss(weights, torch.full((2, 3), -100)) == 0
    with pytest.raises(InputError, match="one target"):
        mutual_information_loss(weights, positives[:1])
    positive, negative = torch.randn(2, 3, 1, requires_grad=True), torch.randn(2, 3, 8)
    drawn = UniformSampler(20).sample(torch.randn(6, 4), 8)
    drawn = Negatives(drawn.ids.view(2, 3, 8), drawn.log_q.view(2, 3, 8))
    losses, effective = sampled_cross_entropy(positive, negative, positives[..., None], drawn)
    flat, flat_effective = sampled_cross_entropy(
        positive[kept], negative[kept], positives[kept][:, None], Negatives(drawn.ids[kept], drawn.log_q[kept])
    )
    torch.testing.assert_close(losses[kept], flat)
    torch.testing.assert_close(effective[kept], flat_effective)
    assert bool((losses[~kept] == 0).all())
    losses.sum().backward()
    assert bool((positive.grad[~kept] == 0).all())
    with pytest.raises(InputError, match="leading axes"):
        sampled_cross_entropy(positive[:1], negative, positives[..., None], drawn)


def pooled(pooling, states, mask, begin):
    """Components in float64, written out: begin is the position of the first aggregation token of each text."""
    states, out = states.double().numpy(), []
    for text, counted, first in zip(states, mask.numpy(), begin, strict=True):
        if pooling.weights == "first":
            logits = np.zeros((len(text), pooling.components))
            table = two_layers(pooling.mixer, text[first]).reshape(pooling.max_length, -1)
            for position, place in enumerate(np.flatnonzero(counted)):
                logits[place] = table[position]
        else:
            logits = two_layers(pooling.mixer, text)
        logits = logits.copy()
        for p in range(pooling.components):
            logits[first + p, p] += 4.0
        logits[counted == 0] = -np.inf
        weights = np.exp(logits - logits.max(axis=0))
        out.append((weights / weights.sum(axis=0)).T @ text)
    made = linear(pooling.project, np.array(out))
    return made / np.linalg.norm(made, axis=-1, keepdims=True)


@pytest.mark.parametrize("weights", ["first", "own"])
@pytest.mark.parametrize("place", ["front", "end"])
def test_pooling_is_its_formula(weights, place):
    torch.manual_seed(0)
    pooling = ComponentPooling(16, 3, 8, weights=weights, place=place, max_length=20)
    text = torch.randn(4, 9, 16)
    mask = torch.ones(4, 9, dtype=torch.int64)
    mask[1, 5:], mask[2, :4] = 0, 0
    states, full = pooling.insert(text, mask)
    begin = [0] * 4 if place == "front" else [9, 5, 9, 9]
    assert full.sum().item() == mask.sum().item() + 12
    for row, at in enumerate(begin):
        torch.testing.assert_close(states[row, at : at + 3], pooling.tokens)
        assert bool(full[row, at : at + 3].all())
    with torch.no_grad():
        found = pooling(states, full)
    np.testing.assert_allclose(found, pooled(pooling, states.detach(), full, begin), atol=1e-5)


def test_the_published_weights_come_from_the_first_state():
    """Other states change what is averaged and not how."""
    torch.manual_seed(0)
    pooling = ComponentPooling(6, 2, weights="first", max_length=8)
    mask = torch.ones(1, 8)
    first, others = torch.randn(6), torch.randn(2, 7, 6)
    with torch.no_grad():
        logits = pooling.mixer(first).view(8, 2)
        logits[0, 0], logits[1, 1] = logits[0, 0] + 4, logits[1, 1] + 4
        shares = torch.softmax(logits, 0)
        for rest in others:
            states = torch.cat([first[None], rest])
            wanted = torch.nn.functional.normalize(shares.T @ states, dim=-1)
            torch.testing.assert_close(pooling(states[None], mask)[0], wanted)
    with pytest.raises(InputError, match="max_length is 8"):
        pooling.insert(torch.randn(1, 7, 6), torch.ones(1, 7))
    with pytest.raises(InputError, match="for each token"):
        pooling.insert(torch.randn(1, 5, 6), torch.ones(1, 4))
    with pytest.raises(InputError, match="weights"):
        ComponentPooling(6, 2, weights="all")
