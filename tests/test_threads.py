"""Any number of threads may use one object of each product; `make sanitize-threads` watches them."""

import sys
import sysconfig
import threading

import numpy as np
import pytest

import softindex
from mol.made_similarities import queries_of, similarity
from softindex.mol import build

random = np.random.default_rng(0)


def normal(*shape):
    return random.standard_normal(shape, dtype=np.float32)


def index_calls():
    index = softindex.build(normal(2000, 20), clusters=40, tree=True, codes=True, threads=1)
    queries = normal(70, 20)
    drawing = {"temperature": 0.5, "seed": 1, "threads": 3}
    return [
        lambda: index.sample(queries, 3, **drawing).ids,
        lambda: index.sample(queries, 3, method="exact", **drawing).log_prob,
        lambda: index.sample(queries[0], 3, method="exact", **drawing).log_prob,
        lambda: index.sample(queries, 3, method="certified", **drawing).ids,
        lambda: index.sample(queries, 3, method="sd-hierarchical", **drawing).ids,
        lambda: index.sample(queries, 3, exclude=[1, 2], top_p=0.9, **drawing).ids,
        lambda: index.top_k(queries, 4, threads=3).ids,
        lambda: index.log_partition(queries, temperature=0.5, threads=3).value,
    ]


def layer_calls():
    layer, queries = softindex.AdaptiveSoftmax(normal(1500, 300)), normal(6, 300)
    return [
        lambda: layer.top_k(queries, 3, temperature=1.0, threads=3).ids,
        lambda: layer.top_k(queries, 3, temperature=1.0, guarantee="exact", threads=3).ids,
        lambda: layer.sample(queries, 3, temperature=1.0, seed=1, threads=3).ids,
    ]


def mixture_calls():
    model = similarity("mixture", 1500)
    index, queries = build(model, np.arange(1500)), queries_of(model)
    methods = ("exact", "brute-force", "two-pass", "per-embedding", "average", "clusters")
    return [
        *(lambda method=method: index.top_k(queries, 5, method=method, threads=3).ids for method in methods),
        lambda: index.sample(queries, 3, temperature=1.0, seed=1, threads=3).ids,
    ]


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter is not free-threaded")
def test_a_free_threaded_interpreter_stays_without_its_lock():
    assert not sys._is_gil_enabled()


@pytest.mark.parametrize("make", [index_calls, layer_calls, mixture_calls])
def test_threads_that_call_at_once_get_the_same_results(make):
    calls, wrong = make(), []
    expected = [call() for call in calls]

    def work(first):
        for i in range(2 * len(calls)):
            place = (first + i) % len(calls)
            if not np.array_equal(calls[place](), expected[place]):
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("threads", [1, 3, 64])
def test_queries_that_are_scanned_together_get_what_each_gets_alone(threads):
    """More than share one reading of the items, with and without exclusions: to the last bit."""
    index, queries = softindex.build(normal(600, 10), clusters=20), normal(150, 10)
    gone = [[q, q + 100] if q % 3 else None for q in range(150)]
    asked = {"temperature": 0.5, "method": "exact"}
    for options in ({}, {"exclude": gone}):
        together = index.sample(queries, 3, seed=5, threads=threads, **asked, **options)
        law = index.log_prob(queries, together.ids, threads=threads, **asked, **options)
        for q in range(0, 150, 7):
            alone = {name: rows[q] or [] for name, rows in options.items()}
            one = index.sample(queries[q], 3, seed=5, threads=1, **asked, **alone)
            np.testing.assert_array_equal(together.ids[q], one.ids)
            np.testing.assert_array_equal(together.log_prob[q], one.log_prob)
            assert together.log_partition.value[q] == one.log_partition.value
            assert together.items_scored[q] == one.items_scored
            np.testing.assert_array_equal(law[q], index.log_prob(queries[q], one.ids, threads=1, **asked, **alone))
