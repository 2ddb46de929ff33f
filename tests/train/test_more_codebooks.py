"""Three and four codebooks: the law is the softmax of sums of codewords, and the number of clusters is limited."""

import numpy as np
import pytest
import torch
from made_samplers import D, N, classes

from softindex import InputError
from softindex.errors import MethodError
from softindex.train import LearnableMIDXSampler, MIDXSampler

KINDS = [(books, quantizer) for books in (3, 4) for quantizer in ("rq", "pq")]


def fitted(books, quantizer, **options):
    items, frequencies, bias, queries = classes()
    sampler = MIDXSampler(N, codewords=5, codebooks=books, quantizer=quantizer, **options)
    return sampler, items, frequencies, bias, queries


def codes_of(cluster, books, size=5):
    """Codes (n, books) of clusters (n,): the digits of their numbers."""
    return np.stack([cluster // size ** (books - 1 - place) % size for place in range(books)], axis=1)


def reference(sampler, queries, books, log_weight=0.0):
    """log q in float64: the softmax of each class's codewords, summed one codebook at a time."""
    near = np.zeros((N, D))
    for place, code in enumerate(codes_of(sampler.tables["cluster"].numpy(), books).T):
        near += sampler.tables["books"].numpy().astype(np.float64)[place][code]
    logits = queries.numpy().astype(np.float64) @ near.T + log_weight
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


@pytest.mark.parametrize(("books", "quantizer"), KINDS)
@pytest.mark.parametrize("residual", ["uniform", "weighted"])
def test_the_law_is_the_softmax_of_the_sums_of_codewords(books, quantizer, residual):
    sampler, items, frequencies, bias, queries = fitted(books, quantizer, residual=residual)
    weighted = residual == "weighted"
    sampler.refresh(items, frequencies=frequencies, queries=queries, bias=bias if weighted else None)
    log_weight = sampler.tables["log_weight"].numpy() if weighted else 0.0
    expected = reference(sampler, queries, books, log_weight)
    np.testing.assert_allclose(sampler.log_q(queries, torch.arange(N)).numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("books", [3, 4])
def test_each_codebook_of_a_product_quantizer_has_its_own_coordinates(books):
    sampler, items, _, _, _ = fitted(books, "pq")
    sampler.refresh(items)
    used = (sampler.tables["books"] != 0).any(1)
    assert used.sum(0).tolist() == [1] * D
    sizes = used.sum(1).tolist()
    assert max(sizes) - min(sizes) <= 1


def test_each_codebook_of_a_residual_quantizer_brings_the_sum_closer():
    sampler, items, _, _, _ = fitted(4, "rq")
    sampler.refresh(items)
    codes = codes_of(sampler.tables["cluster"].numpy(), 4)
    near, distances = torch.zeros(N, D), []
    for book, code in zip(sampler.tables["books"], codes.T, strict=True):
        near = near + book[torch.from_numpy(code).long()]
        distances.append(float(((items - near) ** 2).sum()))
    assert distances == sorted(distances, reverse=True)


@pytest.mark.parametrize(("books", "quantizer"), KINDS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_refresh_starts_from_the_last_codebooks(books, quantizer, with_bias):
    sampler, items, _, bias, _ = fitted(books, quantizer)
    given = {"bias": bias} if with_bias else {}
    sampler.refresh(items, **given)
    before = sampler.tables["cluster"].clone()
    sampler.refresh(items + 1e-4, **given)
    assert float((sampler.tables["cluster"] == before).float().mean()) > 0.5


def test_two_codebooks_are_the_default_and_keep_their_tables():
    items, _, _, _ = classes()
    sampler = MIDXSampler(N, codewords=5)
    sampler.refresh(items)
    assert sampler.codebooks == 2
    assert "books" not in sampler.tables


@pytest.mark.parametrize(("books", "most"), [(3, 40), (4, 16)])
def test_the_error_of_too_many_clusters_says_how_many_codewords_are_allowed(books, most):
    assert MIDXSampler(N, codewords=most, codebooks=books).codewords == most
    with pytest.raises(InputError, match=f"at most {most} codewords with {books} codebooks"):
        MIDXSampler(N, codewords=most + 1, codebooks=books)


@pytest.mark.parametrize("books", [1, 5])
def test_other_numbers_of_codebooks_are_refused(books):
    with pytest.raises(InputError, match="expected 2, 3 or 4"):
        MIDXSampler(N, codebooks=books)


def test_learned_codebooks_are_two():
    with pytest.raises(MethodError, match="expected 2"):
        LearnableMIDXSampler(N, D, codewords=4, codebooks=3)


@pytest.mark.parametrize("books", [2, 3, 4])
def test_by_default_there_are_as_many_clusters_whatever_the_number_of_codebooks(books):
    sampler = MIDXSampler(N, codebooks=books)
    assert sampler.codewords**sampler.codebooks == 4096
