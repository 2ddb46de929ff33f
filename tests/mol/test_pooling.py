"""Pooling of texts: padding changes nothing, and wrong input is one sentence."""

import math

import pytest

torch = pytest.importorskip("torch")

from softindex.errors import InputError  # noqa: E402
from softindex.mol import ComponentPooling  # noqa: E402

FORMS = [(weights, place) for weights in ("first", "own") for place in ("front", "end")]


def pooling_of(**options):
    """Pooling whose weights differ much between positions."""
    torch.manual_seed(0)
    pooling = ComponentPooling(6, 3, hidden=8, **{"max_length": 20, **options})
    with torch.no_grad():
        pooling.mixer[2].weight.mul_(10)
    return pooling


def padded(text, left, right, filling=0.0):
    """The text (1, s, d) and its mask with padding on both sides."""
    row = torch.nn.functional.pad(text, (0, 0, left, right), value=filling)
    return row, torch.nn.functional.pad(torch.ones(1, text.shape[1], dtype=torch.long), (left, right))


@pytest.mark.parametrize(("weights", "place"), FORMS)
@pytest.mark.parametrize("length", [0, 1, 5])
def test_components_do_not_depend_on_padding(weights, place, length):
    pooling, text = pooling_of(weights=weights, place=place), torch.randn(1, length, 6)
    alone = pooling(*pooling.insert(*padded(text, 0, 0)))
    for sides in ((3, 0), (0, 4), (2, 5)):
        torch.testing.assert_close(pooling(*pooling.insert(*padded(text, *sides))), alone)
    states, mask = pooling.insert(*padded(text, 0, 0))
    around = torch.nn.functional.pad(states, (0, 0, 2, 1)), torch.nn.functional.pad(mask, (2, 1))
    torch.testing.assert_close(pooling(*around), alone)


@pytest.mark.parametrize(("weights", "place"), FORMS)
@pytest.mark.parametrize("filling", [math.nan, math.inf])
def test_states_of_padding_do_not_matter(weights, place, filling):
    pooling, text = pooling_of(weights=weights, place=place), torch.randn(1, 5, 6)
    alone = pooling(*pooling.insert(*padded(text, 0, 0)))
    states, mask = pooling.insert(*padded(text, 2, 3, filling))
    found = pooling(states, mask)
    torch.testing.assert_close(found, alone)
    (grad,) = torch.autograd.grad(found.sum(), states)
    assert bool(torch.isfinite(grad).all())
    assert bool((grad[mask == 0] == 0).all())


def test_only_tokens_count_against_the_longest_length():
    pooling, text = pooling_of(max_length=8), torch.randn(1, 5, 6)
    assert pooling(*pooling.insert(*padded(text, 10, 10))).shape == (1, 3, 6)
    longer = padded(torch.randn(1, 6, 6), 0, 0)
    with pytest.raises(InputError, match="9 tokens with the aggregation tokens but max_length is 8"):
        pooling.insert(*longer)
    with pytest.raises(InputError, match="9 tokens with the aggregation tokens but max_length is 8"):
        pooling(torch.randn(1, 9, 6), torch.ones(1, 9))
    assert pooling_of(max_length=8, weights="own").insert(*longer)[0].shape == (1, 9, 6)


def test_a_batch_may_be_empty():
    for weights, place in FORMS:
        pooling = pooling_of(weights=weights, place=place)
        assert pooling(*pooling.insert(torch.zeros(0, 4, 6), torch.zeros(0, 4))).shape == (0, 3, 6)


def test_pooling_can_be_exported():
    pooling = pooling_of(place="end")
    with torch.no_grad():
        given = pooling.insert(*padded(torch.randn(1, 5, 6), 2, 0))
    torch.testing.assert_close(torch.export.export(pooling, given).module()(*given), pooling(*given))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dim": 0}, "dim is 0"),
        ({"dim": "a"}, "dim is 'a'"),
        ({"hidden": -1}, "hidden is -1"),
        ({"hidden": 0}, "hidden is 0"),
        ({"components": 9, "max_length": 8}, "9 aggregation tokens but max_length is 8"),
    ],
)
def test_wrong_settings_raise_a_sentence(settings, words):
    with pytest.raises(InputError, match=words):
        ComponentPooling(**{"dim": 6, "components": 3, **settings})


def test_wrong_input_raises_a_sentence():
    pooling, states, mask = pooling_of(), torch.randn(2, 8, 6), torch.ones(2, 8)
    empty = torch.stack([torch.ones(8), torch.zeros(8)])
    for call, words in (
        (lambda: pooling(states[..., :5], mask), r"shape \(2, 8, 5\); expected floats \(b, s, 6\)"),
        (lambda: pooling(states[0], mask), r"shape \(8, 6\); expected floats \(b, s, 6\)"),
        (lambda: pooling(states.long(), mask), "states are torch.int64"),
        (lambda: pooling(states.numpy(), mask), "states: got .*; expected a tensor"),
        (lambda: pooling(states, mask.tolist()), "mask: got .*; expected a tensor"),
        (lambda: pooling(states, empty), "row 1 of the mask counts 0 tokens; expected at least the 3 aggregation"),
        (lambda: pooling.insert(states[..., :5], mask), r"embeddings are .* of shape \(2, 8, 5\)"),
        (lambda: pooling.insert(states, mask[:, :7]), "pass a number for each token"),
    ):
        with pytest.raises(InputError, match=words):
            call()
