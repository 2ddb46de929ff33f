"""Dot products of equal rank and parameters are what their name says."""

import pytest
import torch

from experiments.harness.products import WideProduct, parameters_of
from experiments.harness.similarities import mixture_of, model_of, rank_of, similarity_of
from experiments.learned_similarity import PUBLISHED, RATINGS


@pytest.mark.parametrize("settings", [PUBLISHED, RATINGS], ids=["sequences", "ratings"])
@pytest.mark.parametrize("encoder", ["sasrec", "hstu"])
def test_the_equal_products_have_the_parameters_of_the_mixture_within_one_in_a_thousand(settings, encoder):
    settings = settings | {"users": 10, "items": 500}
    mixture, *products = (
        parameters_of(model_of(encoder, name, settings)) for name in ("mol", "dot-equal", "cosine-equal")
    )
    assert products == pytest.approx([mixture, mixture], rel=1e-3)


@pytest.mark.parametrize("name", ["dot", "dot-equal", "cosine-equal"])
def test_the_scores_have_the_stated_rank(name):
    settings = {"width": 4, "components": 3, "component width": 4}
    torch.manual_seed(0)
    similarity = similarity_of(name, settings).double()
    with torch.no_grad():
        scores = similarity(torch.randn(40, 4).double(), torch.randn(50, 4).double())
    assert torch.linalg.matrix_rank(scores, rtol=1e-9) == rank_of(name, settings)


def test_the_layers_share_the_parameters_they_are_given():
    wide = WideProduct(16, rank=48, parameters=9000)
    assert parameters_of(wide) == pytest.approx(9000, abs=(2 * 17 + 32) / 2)
    assert parameters_of(wide) - parameters_of(wide.item_more) == parameters_of(wide.query_more)


def test_the_published_mixture_of_ratings_has_the_components_of_the_settings():
    mixture = mixture_of(RATINGS, users=7)
    assert (mixture.query_components, mixture.item_components, mixture.component_dim) == (8, 4, 32)
    assert mixture.user_table.weight.shape == (7, 32)
