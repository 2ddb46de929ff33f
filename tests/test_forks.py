"""A child that is forked while other threads are inside the library can use it, with the same results."""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import softindex
from mol.made_similarities import queries_of, similarity
from softindex.blas import blas_threads
from softindex.locks import ForkLock
from softindex.mol import build

PATIENCE = 20
"""Seconds after which a child counts as hung; it needs milliseconds."""

random = np.random.default_rng(0)


def normal(*shape):
    return random.standard_normal(shape, dtype=np.float32)


@contextmanager
def busy(call, threads=3):
    """Other threads make this call again and again."""
    ended = threading.Event()

    def work():
        while not ended.is_set():
            call()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        ended.set()
        for worker in workers:
            worker.join()


def in_child(call):
    """Whether the call returns True in a forked child."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = call()
        finally:
            os._exit(0 if good else 1)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def test_a_child_draws_while_threads_of_its_parent_draw():
    """Before the pool was safe, about one fork in 200 hung."""
    index = softindex.build(normal(64, 16), clusters=64, threads=1)
    many = normal(20_000, 16)
    expected = index.sample(many[0], 5, temperature=1.0, seed=1).ids

    def draw():
        return bool((index.sample(many[0], 5, temperature=1.0, seed=1).ids == expected).all())

    with busy(lambda: index.sample(many, temperature=1.0, method="2ls", probes=0, threads=8), threads=2):
        assert all(in_child(draw) for _ in range(60))


@pytest.mark.parametrize("guarantee", ["exact", "deterministic"])
def test_a_child_uses_a_layer_while_threads_of_its_parent_do(guarantee):
    layer, query = softindex.AdaptiveSoftmax(normal(2000, 512)), normal(512)

    def find():
        return layer.top_k(query, 3, temperature=1.0, guarantee=guarantee, threads=2)

    expected = find().ids
    with busy(find):
        assert all(in_child(lambda: bool((find().ids == expected).all())) for _ in range(15))


def test_a_child_searches_and_changes_a_learned_similarity_while_threads_of_its_parent_do():
    model = similarity("mixture", 300)
    made, queries = build(model, np.arange(200)), queries_of(model)
    expected = made.top_k(queries, 3, exclude=range(200, 300), unknown="ignore").ids

    def change():
        made.add(np.arange(200, 300))
        made.remove(made.ids[200:])

    def search_and_change():
        found = made.top_k(queries, 3, exclude=made.ids[200:] if len(made) > 200 else None).ids
        made.add(np.arange(200, 201))
        return bool((found == expected).all())

    with busy(change, threads=1):
        assert all(in_child(search_and_change) for _ in range(15))


def _draw_in_pool(path):
    return softindex.load(path).sample(np.ones(16, np.float32), 5, temperature=1.0, seed=1).ids.tolist()


def test_processes_of_multiprocessing_draw_the_same(tmp_path):
    index = softindex.build(normal(500, 16), threads=1)
    index.save(tmp_path / "index")
    expected = index.sample(np.ones(16, np.float32), 5, temperature=1.0, seed=1).ids.tolist()
    queries = normal(2000, 16)
    with (
        busy(lambda: index.sample(queries, temperature=1.0, threads=2)),
        multiprocessing.get_context("fork").Pool(2) as pool,
    ):
        assert pool.map_async(_draw_in_pool, [tmp_path / "index"] * 20).get(PATIENCE) == [expected] * 20


def test_workers_of_a_data_loader_draw_the_same():
    torch = pytest.importorskip("torch")
    index, layer = softindex.build(normal(500, 16), threads=1), softindex.AdaptiveSoftmax(normal(500, 512))
    queries, inputs = normal(40, 16), normal(40, 512)

    class Negatives(torch.utils.data.Dataset):
        def __len__(self):
            return len(queries)

        def __getitem__(self, i):
            drawn = index.sample(queries[i], 5, temperature=1.0, seed=1).ids
            return np.concatenate([drawn, layer.top_k(inputs[i], 2, temperature=1.0, guarantee="exact").ids])

    data = Negatives()
    expected = np.stack([data[i] for i in range(len(data))])
    with busy(lambda: layer.top_k(inputs, 2, temperature=1.0, guarantee="exact", threads=2)):
        for _ in range(3):
            loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, timeout=PATIENCE)
            assert np.array_equal(torch.cat(list(loader)).numpy(), expected)


def test_a_lock_that_another_thread_holds_is_free_in_the_child():
    lock, held, done = ForkLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait()

    def take():
        with lock:
            return True

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert in_child(take)
    done.set()
    holder.join()


def test_a_fork_inside_a_context_of_blas_threads_leaves_both_sides_with_a_working_one():
    def multiply():
        with blas_threads(2):
            return bool(np.isfinite(normal(50, 50) @ normal(50, 50)).all())

    with blas_threads(2):
        assert in_child(multiply)
    assert multiply()
