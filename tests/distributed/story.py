"""A cluster of three Ray nodes on this machine: build, draw, lose a node under traffic, add it back.

Runs as a program of its own: Ray's processes and warnings stay out of the test process.  With --all, as `make test-ray`
runs it, also a server in front of the cluster, a replaced shard, draws for a dataset, biases, and what is refused.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# Nodes on the loopback address only.
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

import numpy as np
import pyarrow.parquet as parquet
import ray
import ray.data
from ray.cluster_utils import Cluster

import softindex
from softindex.testing.statistics import chi_square_score

N, D, T = 3000, 12, 0.8
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
rng = np.random.default_rng(0)
VECTORS = (rng.standard_normal((30, D))[rng.integers(30, size=N)] + 0.5 * rng.standard_normal((N, D))).astype(
    np.float32
)
QUERIES = rng.standard_normal((6, D)).astype(np.float32)


def build_shards(folder):
    """From parts, again without a change, and again after a shard was lost."""
    files = [folder / f"part-{number}.npy" for number in range(4)]
    for file, part in zip(files, np.array_split(VECTORS, 4), strict=True):
        np.save(file, part)
    path = folder / "shards"
    made = softindex.ray.build(files, path, shards=3)
    assert [shard.items for shard in made.shards] == [1000, 1000, 1000]
    folders = [path / shard.folder for shard in made.shards]
    before = [os.stat(one).st_ino for one in folders]
    shutil.rmtree(folders[1])
    assert softindex.ray.build(files, path, shards=3) == made
    after = [os.stat(one).st_ino for one in folders]
    assert (before[0], before[2]) == (after[0], after[2])
    return path


def check_law(index):
    """Exact draws fit the softmax; log Z, bounds and the best items are those of one index."""
    one = softindex.build(VECTORS, threads=1)
    logits = VECTORS.astype(float) @ QUERIES.T.astype(float) / T
    log_z = np.logaddexp.reduce(logits, axis=0)
    asked = {"temperature": T, "method": "exact"}
    found = index.log_partition(QUERIES, **asked)
    assert np.abs(found.value - one.log_partition(QUERIES, **asked).value).max() < 1e-6
    draws = index.sample(np.repeat(QUERIES[:1], 200, axis=0), 100, seed=1, **asked)
    # 20,000 draws; false alarm about 3e-7.
    assert chi_square_score(np.bincount(draws.ids.ravel(), minlength=N), np.exp(logits[:, 0] - log_z[0])) < 5
    proven = index.sample(QUERIES, 50, temperature=T, method="certified", seed=1)
    truth = np.take_along_axis((logits - log_z).T, proven.ids, 1)
    assert ((proven.low <= truth) & (truth <= proven.high)).all()
    best = index.top_k(QUERIES, 10)
    assert best.proven.all()
    assert (best.ids == one.top_k(QUERIES, 10).ids).all()
    try:
        index.sample(QUERIES, temperature=T, exclude=[N])
    except softindex.UnknownIdError as error:
        assert "in exclude" in str(error)
    else:
        raise AssertionError("an unknown id was accepted")


def lose_a_node(cluster, path):
    """With two replicas no call fails; with one the lost shard is an error until it is loaded elsewhere."""
    lost = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    alone = softindex.ray.open(path, cpus=0.1, timeout=10)
    double = softindex.ray.open(path, replicas=2, cpus=0.1, timeout=10)
    expected = double.sample(QUERIES, 5, temperature=T, seed=3).ids
    problems, calls, end = [], [], threading.Event()

    def traffic():
        while not end.is_set():
            try:
                calls.append((double.sample(QUERIES, 5, temperature=T, seed=3).ids == expected).all())
            except softindex.SoftindexError as error:
                problems.append(error)

    thread = threading.Thread(target=traffic)
    thread.start()
    time.sleep(0.5)
    cluster.remove_node(lost, allow_graceful=False)
    refused = recovered = False
    until = time.monotonic() + 40
    while time.monotonic() < until and not (refused and recovered):
        try:
            same = (alone.sample(QUERIES, 5, temperature=T, seed=3).ids == expected).all()
            assert same
            recovered = refused
        except softindex.ShardError as error:
            refused = True
            assert "no other replica" in str(error)
        time.sleep(0.05)
    end.set()
    thread.join()
    assert not problems, problems
    assert len(calls) > 5
    assert all(calls)
    assert refused, "the lost shard was never missed"
    assert recovered, "the lost shard was not loaded elsewhere"
    alone.close()
    return double, expected


def add_it_back(cluster, path, double, expected):
    """A new node takes actors, and the draws are the same; a shard that is too slow is refused."""
    cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    assert (double.sample(QUERIES, 5, temperature=T, seed=3).ids == expected).all()
    double.close()
    with softindex.ray.open(path, cpus=0.1) as index:
        assert (index.sample(QUERIES, 5, temperature=T, seed=3).ids == expected).all()
        index._fleet._timeout = 1e-6
        # Many queries: on a busy machine the answer to a few may be there before anyone looks at the clock.
        many = np.tile(QUERIES, (1 + 20_000 // len(QUERIES), 1))
        try:
            index.sample(many, 20, temperature=T)
        except softindex.ShardError as error:
            assert "did not answer within" in str(error)
        else:
            raise AssertionError("a deadline of a microsecond was kept")


def serve(cluster, folder, path):
    """A server in front of the cluster gives the draws of the index."""
    script = Path(sys.executable).with_name("softindex")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [script, "serve", path, "--ray", cluster.address, "--port", port, "--no-access-log"]
    with open(folder / "served.log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with softindex.Client(f"http://127.0.0.1:{port}", retries=20, timeout=60) as client:
            until = time.monotonic() + 60
            while True:
                try:
                    assert client.info["kind"] == "sharded"
                    break
                except softindex.ServiceError:
                    assert time.monotonic() < until, (folder / "served.log").read_text()
                    assert server.poll() is None, (folder / "served.log").read_text()
                    time.sleep(0.3)
            served = client.sample(QUERIES, 5, temperature=T, seed=3).ids
            assert (client.vectors([3, 4]) == VECTORS[[3, 4]]).all()
            assert len(client) == N
    finally:
        server.terminate()
        server.wait(30)
    return served


def check_pinned(path):
    """A shard that was replaced is not opened: all shards answer from one version."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    folder = next(copy.glob("build-*/shard-00000"))
    softindex.build(VECTORS[:50], threads=1).save(folder)
    try:
        softindex.ray.open(copy, cpus=0.1)
    except softindex.SoftindexError as error:
        assert "shard 0" in str(error), error
    else:
        raise AssertionError("a replaced shard was opened")


def build_with_biases(folder):
    """From a dataset with two columns of biases; what does not fit is one sentence, and leaves nothing behind."""
    values = {name: np.random.default_rng(5).standard_normal(N) for name in ("bias", "prior")}
    rows = [
        {"id": number, "vector": vector, **{name: float(column[number]) for name, column in values.items()}}
        for number, vector in enumerate(VECTORS)
    ]
    dataset, path = ray.data.from_items(rows), folder / "biased"
    softindex.ray.build(dataset, path, shards=2, bias="bias", log_bias="prior")
    assert not list(path.glob("staged-*"))
    logits = (VECTORS.astype(float) @ QUERIES[0] + values["bias"]) / T + values["prior"]
    with softindex.ray.open(path, cpus=0.1) as index:
        law = index.log_prob(QUERIES[0], np.arange(N), temperature=T, method="exact")
    assert np.abs(law - (logits - np.logaddexp.reduce(logits))).max() < 1e-4
    part, wide, bad = (folder / f"{name}.npy" for name in ("part", "wide", "bad"))
    np.save(part, VECTORS)
    np.save(wide, VECTORS[:, :5])
    np.save(bad, np.where(np.arange(N)[:, None] == 7, np.nan, VECTORS))
    taken, target = folder / "taken", folder / "refused"
    taken.write_text("something else")
    for source, options, reason in (
        ([], {}, "no files"),
        (7, {}, "expected paths"),
        ([folder / "none.npy"], {}, "no file at"),
        ([part, wide], {}, "5 dimensions but"),
        ([part, bad], {}, "row 7 of the vectors in"),
        ([part], {"shards": N + 1}, "at most that many"),
        ([part], {"bias": "price"}, "column of Parquet files"),
        (dataset, {"bias": "price"}, "no column 'price'"),
        (ray.data.from_items([*rows, rows[3]]), {"shards": 2}, "id 3 is given more than once"),
    ):
        for place in (target, taken) if source == [] else (target,):
            try:
                softindex.ray.build(source, place, **options)
            except softindex.SoftindexError as error:
                assert (reason if place == target else "cannot be made a directory") in str(error), error
            else:
                raise AssertionError(f"{source} was built")
        assert not target.exists(), (reason, list(target.iterdir()))


def draw_for_a_dataset(folder, path):
    """A job that stopped after some queries continues, and writes each query once."""
    queries = rng.standard_normal((600, D)).astype(np.float32)
    rows = [{"id": number, "query": query} for number, query in enumerate(queries)]
    asked = {"temperature": T, "n": 3, "batch_size": 100, "seed": 5}
    output = folder / "draws"
    assert softindex.ray.sample_dataset(ray.data.from_items(rows[:250]), path, output, **asked) == 250
    assert softindex.ray.sample_dataset(ray.data.from_items(rows), path, output, **asked) == 350
    table = parquet.read_table(output).to_pydict()
    assert sorted(table["id"]) == list(range(600))
    shards = [softindex.load(one) for one in sorted(path.glob("build-*/shard-?????"))]
    expected = softindex.sharded.join(shards).sample(queries, 3, temperature=T, seed=5).ids
    assert all(items == expected[number].tolist() for number, items in zip(table["id"], table["items"], strict=True))


def main():
    """Everything, in order."""
    folder = Path(tempfile.mkdtemp())
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        path = build_shards(folder)
        with softindex.ray.open(path, cpus=0.1) as index:
            check_law(index)
        double, expected = lose_a_node(cluster, path)
        add_it_back(cluster, path, double, expected)
        if "--all" in sys.argv:
            assert (serve(cluster, folder, path) == expected).all()
            check_pinned(path)
            draw_for_a_dataset(folder, path)
            build_with_biases(folder)
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write("the story ends well\n")


if __name__ == "__main__":
    main()
