"""Classes that are left out have no weight and are never returned, whatever the guarantee."""

import numpy as np
import pytest

import softindex
from softindex import AdaptiveSoftmax

GUARANTEES = ["exact", "deterministic", "calibrated", "pac"]


@pytest.fixture
def case(make_case):
    return make_case(planted=20.0)


@pytest.fixture
def soft(case):
    soft = AdaptiveSoftmax(case.weights, case.bias, log_bias=case.log_bias)
    soft.calibrate(np.tile(case.queries, (8, 1)))
    return soft


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_best_of_the_others_are_found(case, soft, guarantee):
    for query in case.queries[:4]:
        best = np.argsort(-case.logits(query, 0.7))
        exclude = best[[0, 2, 3]]
        found = soft.top_k(query, 3, temperature=0.7, guarantee=guarantee, exclude=exclude)
        expected = case.log_prob(query, 0.7, exclude)
        assert found.ids.tolist() == best[[1, 4, 5]].tolist()
        np.testing.assert_allclose(np.exp(found.log_prob), np.exp(expected[found.ids]), rtol=0.3)
        assert found.log_partition.low <= np.logaddexp.reduce(case.logits(query, 0.7, exclude)) + 1e-9
        assert found.log_partition.high >= np.logaddexp.reduce(case.logits(query, 0.7, exclude)) - 1e-9


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_sequence_for_each_query_is_that_query_alone(case, soft, guarantee):
    lists = [[5, 1, 5], [], None, np.arange(250)]
    together = soft.top_k(case.queries[:4], 2, temperature=1.0, guarantee=guarantee, exclude=lists)
    for row, exclude in enumerate(lists):
        alone = soft.top_k(case.queries[row], 2, temperature=1.0, guarantee=guarantee, exclude=exclude)
        np.testing.assert_array_equal(together.ids[row], alone.ids)
        np.testing.assert_array_equal(together.log_prob[row], alone.log_prob)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_one_class_that_is_left_has_all_the_probability(case, soft, guarantee):
    others = np.delete(np.arange(300), 17)
    found = soft.top_k(case.queries[0], 1, temperature=1.0, guarantee=guarantee, exclude=others)
    assert found.ids.tolist() == [17]
    np.testing.assert_allclose(found.log_prob, 0.0, atol=0.3)
    assert set(soft.sample(case.queries[0], 9, temperature=1.0, exclude=others, seed=0).ids) == {17}


def test_draws_and_nuclei_leave_them_out(case, soft):
    query = case.queries[0]
    best = np.argsort(-case.logits(query, 2.0))
    exclude = best[:3]
    nucleus = soft.nucleus(query, 0.5, temperature=2.0, exclude=exclude)
    assert nucleus.ids.tolist() == best[3 : 3 + nucleus.sizes].tolist()
    for options in ({}, {"top_p": 0.6}, {"method": "top-k", "k": 20}, {"method": "top-k"}):
        draws = soft.sample(query, 500, temperature=2.0, exclude=exclude, seed=1, **options)
        assert not set(draws.ids) & set(exclude)


def test_excluding_everything_or_too_much_is_refused(case, soft):
    some = [None, range(300)]
    for call in (soft.log_partition, soft.sample):
        with pytest.raises(softindex.InputError, match="exclude leaves no class for query 1"):
            call(case.queries[:2], temperature=1.0, exclude=some)
    with pytest.raises(softindex.InputError, match="k is 2 but exclude leaves 1 class for query 1"):
        soft.top_k(case.queries[:2], 2, temperature=1.0, exclude=[None, range(1, 300)])
    with pytest.raises(softindex.InputError, match="k is 9 but exclude leaves 5 classes"):
        soft.sample(case.queries[0], temperature=1.0, method="top-k", k=9, exclude=range(295))


def calls(soft):
    return {
        "top_k": lambda query, **options: soft.top_k(query, 3, temperature=1.0, **options),
        "log_partition": lambda query, **options: soft.log_partition(query, temperature=1.0, **options),
        "log_prob": lambda query, **options: soft.log_prob(query, [1, 2], temperature=1.0, **options),
        "nucleus": lambda query, **options: soft.nucleus(query, 0.5, temperature=1.0, **options),
        "sample": lambda query, **options: soft.sample(query, 5, temperature=1.0, seed=0, **options),
    }


def parts(answer):
    if isinstance(answer, softindex.Estimate):
        return [answer.value, answer.low, answer.high]
    return [answer] if isinstance(answer, np.ndarray) else [answer.ids, answer.log_prob]


@pytest.mark.parametrize("name", ["top_k", "log_partition", "log_prob", "nucleus", "sample"])
def test_numbers_that_are_no_class_are_an_error_unless_they_are_ignored(case, soft, name):
    call, strange = calls(soft)[name], [-1, 5, 300, 2**40]
    with pytest.raises(softindex.UnknownIdError, match="exclude names class -1, which does not exist"):
        call(case.queries[0], exclude=strange)
    for exclude, known in ((strange, [5]), ([[7, 300], [-5]], [[7], []])):
        queries = case.queries[0] if known == [5] else case.queries[:2]
        ignored = call(queries, exclude=exclude, unknown="ignore")
        for first, second in zip(parts(ignored), parts(call(queries, exclude=known)), strict=True):
            np.testing.assert_array_equal(first, second)
    for exclude in (None, [5]):
        with pytest.raises(softindex.InputError, match="unknown"):
            call(case.queries[0], exclude=exclude, unknown="drop")
