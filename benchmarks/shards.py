"""Shards on a local Ray cluster of two CPUs: what a call costs beyond the index, what shards gain, and builds."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import softindex
from benchmarks.tables import Table
from softindex.sharded import ShardedIndex, answer, describe

ROUNDS = 3
FASTEST = 25
BATCHES = (1, 64, 4096)
T = 0.1


def started(cpus=2):
    """Ray on this machine, bound to loopback, with a small object store."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    import ray

    # Of its own: without an address Ray would join a cluster that somebody else runs on this machine.
    ray.init(
        address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=300 << 20, log_to_driver=False
    )
    return ray


def made(n, d, seed=0):
    """Unit vectors in groups, (n, d)."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((1000, d)).astype(np.float32)
    vectors = centres[rng.integers(1000, size=n)]
    for part in np.array_split(np.arange(n), max(1, n // 500_000)):
        vectors[part] += 0.6 * rng.standard_normal((len(part), d), dtype=np.float32)
        vectors[part] /= np.linalg.norm(vectors[part], axis=1, keepdims=True)
    return vectors


def seconds(function, least=0.3):
    """Seconds of one call: the mean over at least so long."""
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < least or count == 0:
        function()
        count += 1
    return (time.perf_counter() - begin) / count


def calls(folder, items):
    """Milliseconds of a call in process on one thread, and through one and two shards; medians of rounds."""
    vectors = made(items, 64)
    queries = made(4096, 64, seed=1)
    file = folder / "items.npy"
    np.save(file, vectors)
    local = softindex.build(vectors, threads=2)
    paths = {count: folder / f"shards-{count}" for count in (1, 2)}
    for count, path in paths.items():
        softindex.ray.build([file], path, shards=count, threads=1)
    opened = {count: softindex.ray.open(path, threads=1, cpus=0.5) for count, path in paths.items()}
    rows = []
    for method in ("sd-2ls", "exact"):
        for batch in BATCHES:
            if method == "exact" and batch == 4096:
                # As many as a scan of all items answers in seconds.
                batch = 256
            asked = {"temperature": T, "method": method, "seed": 0}
            runs = [lambda b=batch, a=asked: local.sample(queries[:b], threads=1, **a)]
            runs += [lambda i=index, b=batch, a=asked: i.sample(queries[:b], **a) for index in opened.values()]
            for run in runs:
                run()
            alone, one, two = np.median([[seconds(run) for run in runs] for _ in range(ROUNDS)], axis=0) * 1e3
            shown = [f"{value:.2f}" for value in (alone, one, two)]
            # Others may use the cores: the fastest of several calls says what shards gain when they do not.
            least = np.min([[seconds(run, 0.0) for run in runs[1:]] for _ in range(FASTEST)], axis=0)
            gains = [f"{one / two:.2f}", f"{least[0] / least[1]:.2f}"]
            rows.append([method, f"{batch:,}", *shown, f"{one - alone:.2f}", *gains])
    for index in opened.values():
        index.close()
    title = f"A call over {items:,} x 64 items, milliseconds, one thread per process; median of {ROUNDS} rounds"
    columns = ["method", "batch", "in process", "1 shard", "2 shards", "overhead of Ray", "1 shard / 2 shards"]
    return Table(title, [*columns, f"the same of the fastest of {FASTEST}"], rows)


def work(items):
    """Milliseconds of CPU time: of one shard, of the slower of two, and of the coordinator."""
    vectors, queries, ids = made(items, 64), made(4096, 64, seed=1), np.arange(items)
    divided = {
        count: [softindex.build(vectors[first::count], ids=ids[first::count], threads=2) for first in range(count)]
        for count in (1, 2)
    }
    rows = []
    for method, batch in (("exact", 1), ("exact", 64), ("exact", 256), ("sd-2ls", 1), ("sd-2ls", 64), ("sd-2ls", 4096)):
        runs = [[spent(divided[count], queries[:batch], method) for count in (1, 2)] for _ in range(5)]
        (one, merging), (two, merging_two) = np.median(runs, axis=0) * 1e3
        shown = [f"{value:.2f}" for value in (one, merging, two, merging_two)]
        rows.append([method, f"{batch:,}", *shown, f"{(one + merging) / (two + merging_two):.2f}"])
    title = f"CPU time of a call over {items:,} x 64 items, milliseconds, without Ray; median of 5 rounds"
    columns = ["method", "batch", "1 shard", "its coordinator", "slower of 2 shards", "their coordinator", "ratio"]
    return Table(title, columns, rows)


def spent(indexes, queries, method):
    """CPU seconds of the slowest shard, and of the coordinator."""
    times = []

    def ask(question):
        found = []
        for number, index in enumerate(indexes):
            begin = time.process_time()
            found.append(answer(index, question, number, 1))
            times.append(time.process_time() - begin)
        return found

    known = describe([(len(one), dict(one.parameters) | {"clusters": one.clusters}) for one in indexes])
    begin = time.process_time()
    ShardedIndex(ask, known).sample(queries, temperature=T, method=method, seed=0)
    return max(times), time.process_time() - begin - sum(times)


class PeakMemory:
    """The largest resident memory of this process above that at the start, in MB."""

    def __enter__(self):
        self.first = self.peak = _resident()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._end.wait(0.05):
            self.peak = max(self.peak, _resident())

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    @property
    def grown(self):
        """MB."""
        return (self.peak - self.first) / 2**20


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def builds(folder, items, parts=20):
    """A build of Parquet parts in one process, and as two shards on the cluster."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    files = []
    for number in range(parts):
        block = made(items // parts, 64, seed=100 + number)
        ids = arrow.array(np.arange(number * len(block), (number + 1) * len(block)))
        lists = arrow.FixedSizeListArray.from_arrays(arrow.array(block.ravel()), 64)
        files.append(folder / f"part-{number:02}.parquet")
        parquet.write_table(arrow.table({"id": ids, "vector": lists}), files[-1])
    begin = time.perf_counter()
    with PeakMemory() as driver:
        softindex.ray.build(files, folder / "distributed", shards=2, threads=1)
    spread = time.perf_counter() - begin
    local = _local_build(files, folder / "local")
    title = f"Building {items:,} x 64 items from {parts} Parquet files, 2 cores: seconds, reading and saving included"
    columns = ["in one process, 2 threads", "2 shards on Ray", "ratio", "memory of the driver, MB more"]
    return Table(title, columns, [[f"{local:.1f}", f"{spread:.1f}", f"{spread / local:.2f}", f"{driver.grown:.1f}"]])


def _local_build(files, path):
    """Seconds to read all files, build and save, in a process of its own."""
    code = (
        "import sys, time, numpy as np, softindex; from softindex.vectors import read; begin = time.perf_counter();"
        "found = [read(one) for one in sys.argv[2:]];"
        "vectors, ids = (np.concatenate([getattr(one, name) for one in found]) for name in ('vectors', 'ids'));"
        "del found; softindex.build(vectors, ids=ids, threads=2).save(sys.argv[1]);"
        "print(time.perf_counter() - begin)"
    )
    command = [sys.executable, "-c", code, str(path), *map(str, files)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


JOB = """
import sys, ray, softindex
sys.path.insert(0, sys.argv[4])
from benchmarks.shards import started
started(cpus=3)
import ray.data
found = softindex.ray.sample_dataset(ray.data.read_parquet(sys.argv[1]), sys.argv[2], sys.argv[3],
    temperature=0.1, n=5, seed=0, batch_size=4096, workers=2)
print(found)
ray.shutdown()
"""


def job(folder, items, queries=200_000):
    """Draws for a dataset, killed half way and started again: seconds, and how often each query was written."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    source, output = folder / "queries", folder / "draws"
    source.mkdir()
    for number, block in enumerate(np.array_split(made(queries, 64, seed=7), 20)):
        first = number * (queries // 20)
        lists = arrow.FixedSizeListArray.from_arrays(arrow.array(block.ravel()), 64)
        ids = arrow.array(np.arange(first, first + len(block)))
        parquet.write_table(arrow.table({"id": ids, "query": lists}), source / f"{number}.parquet")
    path = folder / "shards-2"
    command = [sys.executable, "-c", JOB, str(source), str(path), str(output), os.getcwd()]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while first.poll() is None and len(list(output.glob("draws-*.parquet"))) < 15:
        time.sleep(0.2)
    first.terminate()
    first.wait()
    written = sum(parquet.read_metadata(one).num_rows for one in output.glob("draws-*.parquet"))
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rest = time.perf_counter() - begin
    ids = np.concatenate([parquet.read_table(one, columns=["id"])["id"] for one in output.glob("draws-*.parquet")])
    counts = np.bincount(ids, minlength=queries)
    title = f"Five draws for each of {queries:,} queries over {items:,} items in 2 shards, interrupted and resumed"
    columns = [
        "written before the interruption",
        "written after it",
        "seconds of the second run",
        "queries written once",
    ]
    row = [f"{written:,}", f"{int(done.stdout.split()[-1]):,}", f"{rest:.0f}", f"{int((counts == 1).sum()):,}"]
    return Table(title, columns, [row])


def run(options):
    """All tables."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        ray = started()
        try:
            tables = [calls(folder, options.items), work(options.items)]
            tables.append(builds(folder, 5 * options.items))
        finally:
            ray.shutdown()
        tables.append(job(folder, options.items))
    return tables
