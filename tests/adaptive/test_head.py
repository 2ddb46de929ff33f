"""Head chooses the tokens that the layer itself would, and refuses what is no layer or no state."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from softindex.adaptive import Decoder, Head  # noqa: E402
from softindex.errors import InputError  # noqa: E402

WORDS, WIDTH = 700, 300


@pytest.fixture(scope="module")
def layer():
    torch.manual_seed(0)
    made = torch.nn.Linear(WIDTH, WORDS)
    torch.nn.init.normal_(made.weight, std=0.2)
    return made


@pytest.fixture(scope="module")
def states():
    return torch.randn(3, 4, WIDTH, generator=torch.Generator().manual_seed(1))


def exact(layer, states):
    """log-probabilities in float64."""
    logits = states.double() @ layer.weight.detach().double().T + layer.bias.detach().double()
    return logits.log_softmax(dim=-1)


def decode(layer, choose, steps=12):
    """A recurrence whose next state depends on the chosen tokens, as in a language model."""
    torch.manual_seed(2)
    words, mix = torch.randn(WORDS, WIDTH), torch.randn(WIDTH, WIDTH) / WIDTH**0.5
    tokens, state, found = torch.tensor([1, 2, 3]), torch.zeros(3, WIDTH), []
    for _ in range(steps):
        state = torch.tanh(state @ mix + words[tokens])
        tokens = choose(state)
        found.append(tokens)
    return torch.stack(found)


@pytest.mark.parametrize("guarantee", ["deterministic", "exact"])
def test_greedy_decoding_gives_the_same_tokens(layer, guarantee):
    head = Head(layer, guarantee=guarantee)
    expected = decode(layer, lambda state: layer(state).argmax(dim=-1))
    assert len(expected.unique()) > 3
    assert torch.equal(decode(layer, lambda state: head.top_k(state, 1).ids[:, 0]), expected)
    assert torch.equal(decode(layer, lambda state: head(state).argmax(dim=-1)), expected)


def test_the_best_come_with_their_probabilities(layer, states):
    found = Head(layer, epsilon=0.01).top_k(states, 5)
    truth = exact(layer, states)
    best = truth.topk(5)
    assert torch.equal(found.ids, best.indices)
    assert found.log_prob.shape == (3, 4, 5)
    np.testing.assert_allclose(found.log_prob, best.values, atol=0.0101)


def test_logits_of_the_kept_tokens_are_those_of_the_layer(layer, states):
    kept = Head(layer, keep=7)(states)
    assert kept.shape == (3, 4, WORDS)
    assert kept.dtype == torch.float32
    finite = kept.isfinite()
    assert (finite.sum(dim=-1) == 7).all()
    torch.testing.assert_close(kept[finite], layer(states).detach()[finite])
    assert torch.equal(kept.topk(7).indices, exact(layer, states).topk(7).indices)


def test_a_nucleus_is_the_fewest_tokens_that_reach_it(layer, states):
    found = Head(layer).nucleus(states, 0.8)
    truth = exact(layer, states).exp()
    for place in np.ndindex(3, 4):
        size = int((found.ids[place] >= 0).sum())
        assert found.ids[place][:size].sort().values.equal(truth[place].topk(size).indices.sort().values)
        assert truth[place].topk(size).values.sum() >= 0.8 > truth[place].topk(size).values[:-1].sum()


def test_draws_have_the_probabilities_of_the_softmax(layer, states):
    # 20,000 draws; the chi-squared statistic of ten groups exceeds 33.7 with probability 1e-4.
    state = states[0, 0]
    draws = Head(layer).sample(state, 20_000, temperature=0.5, seed=3).ids
    truth = (exact(layer, state) * 2).softmax(dim=-1)
    order = truth.argsort(descending=True)
    groups = torch.clamp((truth[order].cumsum(0) * 10).long(), max=9)
    chances = torch.zeros(10, dtype=torch.float64).index_add_(0, groups, truth[order])
    group_of = torch.empty(WORDS, dtype=torch.long).scatter_(0, order, groups)
    counts = torch.bincount(group_of[draws], minlength=10).double()
    seen = chances > 0
    assert ((counts - 20_000 * chances)[seen] ** 2 / (20_000 * chances)[seen]).sum() < 33.7


def test_the_same_seed_draws_the_same_tokens(layer, states):
    head = Head(layer)
    assert torch.equal(head.sample(states, 3, seed=1).ids, head.sample(states, 3, seed=1).ids)
    assert head.sample(states, top_p=0.9, seed=1).ids.shape == (3, 4, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_layers_are_read_as_they_are(layer, states, dtype):
    half = torch.nn.Linear(WIDTH, WORDS, bias=False, dtype=dtype)
    half.weight.data.copy_(layer.weight)
    truth = states.double() @ half.weight.detach().double().T
    assert torch.equal(Head(half).top_k(states, 3).ids, truth.topk(3).indices)
    assert Head(half)(states.to(dtype)).dtype == dtype


def test_gradients_stop_at_the_head(layer, states):
    head = Head(layer)
    assert not list(head.parameters())
    assert not head(states.clone().requires_grad_()).requires_grad
    assert repr(head) == f"Head(in_features={WIDTH}, out_features={WORDS}, keep=1)"


def test_what_is_no_layer_or_no_state_is_refused(layer):
    with pytest.raises(InputError, match=r"expected a torch\.nn\.Linear"):
        Head(np.ones((3, 4)))
    with pytest.raises(InputError, match="keep"):
        Head(layer, keep=WORDS + 1)
    head = Head(layer)
    with pytest.raises(InputError, match="expected a tensor"):
        head.top_k(np.ones(WIDTH), 1)
    with pytest.raises(InputError, match="single number"):
        head(torch.tensor(1.0))
    with pytest.raises(InputError, match="dimensions"):
        head.top_k(torch.ones(2, WIDTH + 1), 1)


class Spoken(torch.nn.Module):
    """What a decoder needs of a causal model of transformers."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.last = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)

    def get_output_embeddings(self):
        return self.last

    def set_output_embeddings(self, layer):
        self.last = layer

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.last(self.words(input_ids)))

    def _sample(self, input_ids, **_):
        return self(input_ids).logits[:, -1].argmax(-1)


def test_a_decoder_refuses_another_model_even_one_of_the_same_shape():
    model, words = Spoken(0), torch.arange(20)[:, None]
    options = SimpleNamespace(do_sample=False, num_beams=1, return_dict_in_generate=False)
    decoder = Decoder(model, threads=1)
    assert torch.equal(decoder(model, words, [], [], options), model._sample(words))
    with pytest.raises(InputError, match="made for another model"):
        decoder(Spoken(1), words, [], [], options)
