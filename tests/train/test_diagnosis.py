"""A diagnosis reports what its definitions say."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from softindex import InputError
from softindex.train import MIDXSampler, UniformSampler, diagnose, sampled_cross_entropy

N, D, B = 50, 4, 12


@pytest.fixture
def problem():
    random = torch.Generator().manual_seed(0)
    return torch.randn(B, D, generator=random), torch.randn(N, D, generator=random)


def test_the_softmax_itself_has_no_error(problem):
    queries, items = problem
    sampler = MIDXSampler(N, codewords=4, residual="oracle")
    sampler.refresh(items)
    found = diagnose(sampler, queries, items, draws=50, repeats=300, generator=torch.Generator().manual_seed(1))
    assert found.kl == pytest.approx(0, abs=1e-5)
    assert found.kl_reverse == pytest.approx(0, abs=1e-5)
    assert found.effective == pytest.approx(1, abs=1e-4)
    assert abs(found.gradient_bias) < 0.005


def test_distances_are_those_of_the_definitions(problem):
    queries, items = problem
    bias = torch.linspace(-1, 1, N)
    p = torch.softmax((queries @ items.T + bias).double(), 1)
    found = diagnose(UniformSampler(N), queries, items, bias=bias, repeats=1)
    assert found.kl == pytest.approx(float((p * (p * N).log()).sum(1).mean()), rel=1e-5)
    assert found.kl_reverse == pytest.approx(float(-(p * N).log().mean()), rel=1e-5)
    assert found.effective == pytest.approx(float((1 / (N * (p**2).sum(1))).mean()), rel=1e-5)


def test_more_draws_have_less_error(problem):
    queries, items = problem
    positives = torch.arange(B)
    few, many = (
        diagnose(UniformSampler(N), queries, items, positives=positives, draws=draws, repeats=50) for draws in (5, 500)
    )
    assert many.gradient_rmse < few.gradient_rmse / 3
    assert "KL(softmax || q)" in str(few)


def test_wrong_input_raises_a_sentence(problem):
    queries, items = problem
    for call, words in (
        (lambda: diagnose(UniformSampler(N), queries, items[:-1]), "classes"),
        (lambda: diagnose(UniformSampler(N), queries, items, positives=torch.zeros(2)), "positives"),
        (lambda: diagnose(UniformSampler(N), queries, items, positives=torch.full((B,), N)), "class 50"),
        (lambda: diagnose(UniformSampler(N), queries, items, draws=0), "draws"),
        (lambda: diagnose(UniformSampler(N), queries * torch.nan, items), "NaN"),
        (lambda: diagnose(UniformSampler(N), queries, items, bias=torch.ones(1)), "bias"),
        (lambda: diagnose(UniformSampler(N), queries[:, :2], items), "dimensions"),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize("correction", ["negatives", "all"])
def test_the_error_of_the_gradient_is_that_on_all_logits(problem, correction):
    """Compared with the gradients of both losses on every logit, classes drawn twice and drawn targets included."""
    queries, items = problem
    positives = torch.arange(B) % 3
    sampler = UniformSampler(N)
    options = {"positives": positives, "draws": 60, "correction": correction}
    found = diagnose(sampler, queries, items, repeats=1, generator=torch.Generator().manual_seed(2), **options)
    drawn = sampler.sample(queries, 60, positives=positives, generator=torch.Generator().manual_seed(2))
    sampled, exact = ((queries @ items.T).double().requires_grad_() for _ in range(2))
    target = positives[:, None]
    log_q = sampler.log_q(queries, target) if correction == "all" else None
    losses, _ = sampled_cross_entropy(
        sampled.gather(1, target), sampled.gather(1, drawn.ids), target, drawn,
        correction=correction, positive_log_q=log_q,
    )  # fmt: skip
    losses.sum().backward()
    torch.nn.functional.cross_entropy(exact, positives, reduction="sum").backward()
    error = sampled.grad - exact.grad
    assert found.gradient_rmse == pytest.approx(float((error**2).sum(1).mean().sqrt()), rel=1e-6)
    assert found.gradient_bias == pytest.approx(float(error.gather(1, target).mean()), rel=1e-6)


def test_repeats_do_not_pass_over_all_classes_again(problem):
    queries, items = problem

    class Counting(TorchDispatchMode):
        passes = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            found = function(*arguments, **(options or {}))
            self.passes += isinstance(found, torch.Tensor) and found.shape == (B, N)
            return found

    def passes(repeats):
        with Counting() as count:
            diagnose(UniformSampler(N), queries, items, draws=3, repeats=repeats)
        return count.passes

    assert passes(1) == passes(9)
