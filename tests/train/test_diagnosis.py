"""A diagnosis reports what its definitions say."""

import pytest
import torch

from softindex import InputError
from softindex.train import MIDXSampler, UniformSampler, diagnose

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
