"""What the system refuses, and what other threads change, gives the same results or one sentence."""

import itertools
import resource
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest

import softindex
from softindex.adaptive.rows import Rows
from softindex.arguments import MOST_RESULTS, check_queries
from softindex.errors import InputError, SoftindexError
from softindex.evaluate.output import write_output
from softindex.kernels import DrawResults, Engine, Law, Request
from softindex.workers import workers

random = np.random.default_rng(0)


def normal(*shape):
    return random.standard_normal(shape, dtype=np.float32)


@pytest.fixture
def limit_threads(monkeypatch):
    """Let Python start so many threads at a time, as a system does that has no more."""

    def limit(most):
        start = threading.Thread.start

        def refuse(thread):
            if threading.active_count() > most:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)

    return limit


def test_a_build_and_an_audit_use_the_threads_that_the_system_gives(limit_threads):
    vectors = normal(3000, 16)
    expected = softindex.build(vectors, clusters=30, threads=1)
    limit_threads(2)
    with workers(50) as pool:
        assert pool._max_workers == 2
    index = softindex.build(vectors, clusters=30, threads=50)
    assert all(np.array_equal(index._contents.arrays[name], array) for name, array in expected._contents.arrays.items())
    assert index.audit(count=10, threads=50).rows


def test_without_any_thread_the_error_is_a_sentence(limit_threads):
    limit_threads(0)
    with pytest.raises(SoftindexError, match=r"refuses to start a thread; .*\(ulimit -u\)\.$"):
        softindex.build(normal(3000, 16), clusters=30)


def test_products_of_a_layer_are_the_same_where_threads_are_refused(limit_threads):
    rows, query = Rows(normal(9000, 1000)), normal(1000).astype(np.float64)
    expected = rows.products(np.arange(9000), query, threads=1)
    limit_threads(1)
    assert np.array_equal(rows.products(np.arange(9000), query, threads=8), expected)


def test_native_code_does_the_work_on_the_threads_that_it_gets():
    """Of 200 threads of 8 MB of stack, a process with 1 GB of addresses above what it uses gets about half."""
    script = """
import itertools
import resource
import numpy as np, softindex
random = np.random.default_rng(0)
index = softindex.build(random.standard_normal((3000, 32), dtype=np.float32), threads=1)
queries = random.standard_normal((5000, 32), dtype=np.float32)
expected = index.sample(queries, temperature=1.0, seed=1, threads=1, method="exact")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
drawn = index.sample(queries, temperature=1.0, seed=1, threads=200, method="exact")
assert (drawn.ids == expected.ids).all()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)


@pytest.mark.parametrize("n", [2**31, 2**40, 2**62])
@pytest.mark.parametrize("method", ["exact", "sd-2ls", "certified", "top-k"])
def test_more_draws_than_memory_are_refused_before_anything_is_drawn(method, n):
    if n < MOST_RESULTS:
        pytest.skip("this machine has the memory")
    index = softindex.build(normal(100, 8), threads=1)
    with pytest.raises(InputError, match=r"do not fit into memory; ask for fewer\.$"):
        index.sample(normal(8), n, temperature=1.0, method=method)


def test_a_full_disk_leaves_the_old_report(tmp_path):
    path = tmp_path / "report.html"
    write_output(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal that goes with this limit: writing beyond it fails as it does on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(InputError, match=r"cannot be written .*; make room, or name a file elsewhere\.$"):
            write_output(path, "new" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_device_without_room_is_named_in_one_sentence():
    with pytest.raises(InputError, match=r"No space left on device.*make room"):
        write_output("/dev/full", "text" * 10_000)


@pytest.mark.parametrize("queries", [normal(8), normal(3, 8), normal(8, 3).T, normal(3, 8).astype(np.float64)])
def test_a_call_reads_its_own_copy_of_the_queries(queries):
    """What another thread writes into the caller's array after the check is never seen."""
    assert not np.shares_memory(check_queries(queries, 8)[0], queries)


def test_read_only_queries_are_not_copied():
    queries = normal(3, 8)
    queries.flags.writeable = False
    assert np.shares_memory(check_queries(queries, 8)[0], queries)


def test_queries_and_ids_that_change_during_calls_do_no_harm():
    """Every call gives results or an InputError; ids are those of items."""
    index = softindex.build(normal(2000, 16), clusters=50, tree=True, codes=True, threads=1)
    queries, ids, ended = normal(50, 16), np.arange(50), threading.Event()
    layer = softindex.AdaptiveSoftmax(normal(300, 16))

    def change():
        values = np.array([np.nan, np.inf, -np.inf, 3e38, 1e-40, 0.5], np.float32)
        while not ended.is_set():
            queries.flat[random.integers(queries.size, size=40)] = random.choice(values, 40)
            queries[:] = 0.1
            ids[random.integers(50)] = random.choice([-1, 2**62, 5, 2000])
            ids[:] = 7

    changing = threading.Thread(target=change)
    changing.start()
    calls = [
        lambda: index.sample(queries, 3, temperature=0.1).ids,
        lambda: index.sample(queries, 3, temperature=0.1, method="certified").ids,
        lambda: index.sample(queries, 3, temperature=0.1, method="sd-hierarchical").ids,
        lambda: index.sample(queries, 3, temperature=0.1, exclude=ids).ids,
        lambda: index.top_k(queries, 3).ids,
        lambda: layer.top_k(queries[7], 2, temperature=0.1, guarantee="pac").ids,
        lambda: np.isnan(index.log_prob(queries, ids, temperature=0.1)).astype(int),
    ]
    try:
        for call in calls * 20:
            try:
                found = call()
            except InputError:
                continue
            assert ((found >= 0) & (found < 2000)).all()
    finally:
        ended.set()
        changing.join()


@pytest.mark.parametrize("name", ["vectors", "means", "scales", "log_bias", "radii"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -3e38])
def test_damaged_numbers_give_results_or_an_error_and_are_never_cast_or_sorted(name, value):
    """Large arrays of a mapped file are not checked when it is loaded; `make sanitize` sees what happens to them."""
    index = softindex.build(normal(600, 20), log_bias=normal(600), clusters=12, codes=True, threads=1)
    arrays = dict(index._contents.arrays)
    arrays[name] = arrays[name].copy()
    arrays[name].flat[:: 7 if len(arrays[name]) == 600 else 2] = value
    engine, queries = Engine(arrays), normal(8, 20)
    kinds = {"estimated": -1, "exhaustive": 0, "certified": 0}
    for (kind, probes), tolerance in itertools.product(kinds.items(), [0.0, 0.03]):
        law = Law(kind, size=True, dispersion=kind != "exhaustive")
        request = Request(queries, law, 0.1, probes=probes, tolerance=tolerance)
        results = [np.full((8, 3), -1), *(np.empty((8, 3)), np.zeros(8, np.int64), np.empty((4, 8)))]
        bounds = [np.empty((8, 3)), np.empty((8, 3))] if kind == "certified" else []
        with suppress(RuntimeError):
            engine.sample(request, DrawResults(*results, *bounds))
            assert ((results[0] >= 0) & (results[0] < 600)).all()
