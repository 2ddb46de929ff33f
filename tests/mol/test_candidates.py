"""How many candidates a search needs: enough that their union has k items."""

import numpy as np
import pytest
from made_similarities import queries_of, similarity, truth

from softindex.errors import InputError
from softindex.mol import build
from softindex.mol.queries import encode
from softindex.mol.reference import logits as logits_of


@pytest.mark.parametrize(("method", "candidates"), [("per-embedding", 5), ("combined", (5, 50))])
def test_fewer_candidates_per_pair_than_results_are_enough_where_their_union_is(method, candidates):
    """The published searches keep 5 and 50 items per pair and return 100."""
    model = similarity("mixture", 2000, parts=(8, 4), d=8)
    made, queries = build(model, np.arange(2000)), queries_of(model)
    side = encode(model.known, queries)
    logits = logits_of(model.known, side.components, model.components)
    per_pair = candidates if method == "per-embedding" else candidates[0]
    found = made.top_k(queries, 100, method=method, candidates=candidates)
    true = truth(model, queries)
    for q in range(len(queries)):
        union = np.unique(np.argsort(-logits[q], axis=0)[:per_pair])
        if method == "combined":
            union = np.union1d(union, np.argsort(-logits[q].sum(axis=1))[: candidates[1]])
        assert found.items_scored[q] == len(union) >= 100
        np.testing.assert_array_equal(np.sort(found.ids[q]), np.sort(union[np.argsort(-true[q, union])[:100]]))


def test_a_union_that_does_not_reach_k_is_refused_in_a_sentence():
    model = similarity("logits", 500, parts=(2, 2))
    made, queries = build(model, np.arange(500)), queries_of(model)
    with pytest.raises(InputError, match="at most 20 items"):
        made.top_k(queries, 21, method="per-embedding", candidates=5)
    same = model.repeated(np.zeros(500, int) + np.arange(500) // 100)
    with pytest.raises(InputError, match=r"candidates of query 0 are \d+ different items but k is 20"):
        build(same, np.arange(500)).top_k(queries, 20, method="per-embedding", candidates=5)
