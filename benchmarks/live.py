"""A catalogue that changes: durable upserts, draws beside a delta and removals, compaction, and cost growth."""

import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import softindex
from benchmarks.draws import interleave
from benchmarks.fidelity import distances
from benchmarks.tables import Table
from softindex.evaluate.datasets import synth_balanced
from softindex.live.space import disk_bytes

TEMPERATURE, TEMPERATURES = 0.1, (0.05, 0.1, 0.2)
DELTA, REMOVED, BATCH, CHANGED = 4000, 0.05, 100_000, 0.1


def other_region(n, d, seed):
    """Items that are none of those in the catalogue: around other means."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((200, d))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return (means[rng.integers(200, size=n)] + 0.05 * rng.standard_normal((n, d))).astype(np.float32)


def bare_append(folder, size, count):
    """Seconds of each append + fdatasync of this many bytes."""
    seconds = []
    file = os.open(Path(folder) / "bare", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for _ in range(count):
        start = time.perf_counter()
        os.write(file, bytes(size))
        os.fdatasync(file)
        seconds.append(time.perf_counter() - start)
    os.close(file)
    return seconds


def upserts(live, folder, vectors):
    """Rows of the table of changes: one upsert against a bare append, in turns, and a batch."""
    ours, bare = [], []
    rows = other_region(200, vectors.shape[1], 3)
    for number, row in enumerate(rows):
        if number % 2:
            bare += bare_append(folder, row.nbytes + 8, 1)
        start = time.perf_counter()
        live.upsert(number, row)
        ours.append(time.perf_counter() - start)
        if not number % 2:
            bare += bare_append(folder, row.nbytes + 8, 1)
    batch = other_region(BATCH, vectors.shape[1], 4)
    start = time.perf_counter()
    live.upsert(np.arange(BATCH), batch)
    seconds = time.perf_counter() - start
    ratio = np.median(ours) / np.median(bare)
    return [
        ["one durable upsert", f"{np.median(ours) * 1e3:.2f} ms", f"{ratio:.2f} x append + fdatasync"],
        [f"{BATCH:,} upserts in a batch", f"{seconds:.2f} s", f"{BATCH / seconds:,.0f} per second"],
    ]


def latencies(snapshot, queries):
    """Seconds of one draw for each query."""
    seconds = []
    for query in queries:
        start = time.perf_counter()
        snapshot.sample(query, temperature=TEMPERATURE, threads=1)
        seconds.append(time.perf_counter() - start)
    return np.array(seconds)


def draws_beside_changes(live, index, queries):
    """Cost of a draw with a delta and removals, over that of the static index."""
    n, d = len(index), index.dim
    rng = np.random.default_rng(5)
    live.remove(rng.choice(n, int(REMOVED * n), replace=False))
    live.upsert(np.arange(n, n + DELTA), other_region(DELTA, d, 6))
    snapshot = live.snapshot()
    functions = {
        "static": lambda query: index.sample(query, temperature=TEMPERATURE, threads=1),
        "live": lambda query: snapshot.sample(query, temperature=TEMPERATURE, threads=1),
    }
    # The files of the catalogue are mapped: whoever reads a page first waits for it.
    interleave(functions, queries)
    seconds = interleave(functions, queries)
    return seconds["static"], seconds["live"]


def resident(*, peak):
    """Megabytes of this process in memory, now or at their peak."""
    name = "VmHWM" if peak else "VmRSS"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return float("nan")


def during_compaction(live, queries):
    """Latencies of draws without and during a compaction."""
    latencies(live.snapshot(), queries)
    before = latencies(live.snapshot(), queries)
    snapshot, during = live.snapshot(), []
    worker = threading.Thread(target=live.compact)
    worker.start()
    while worker.is_alive():
        during.append(latencies(snapshot, queries[len(during) % len(queries)][None]))
    worker.join()
    return before, np.concatenate(during)


def compaction(live):
    """Seconds of the processor that a compaction takes, and the memory it adds at its peak."""
    memory = resident(peak=False)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    start = time.process_time()
    live.compact()
    return time.process_time() - start, resident(peak=True) - memory


def honesty(name, index, queries):
    """Rows of the table of stated errors, as in the section on fidelity."""
    rows = []
    for t in TEMPERATURES:
        kl, tv, stated = distances(index, queries, t)
        doubled = (tv > 2 * stated + 0.01).mean()
        rows.append(
            [
                name,
                str(t),
                f"{kl.mean():.1e}",
                f"{tv.mean():.4f}",
                f"{stated.mean():.4f}",
                f"{(tv > stated).mean():.1%}",
                f"{doubled:.1%}",
            ]
        )
    return rows


def replaced_fifth(place, index, vectors, rng):
    """Stated errors after a fifth of the items was replaced by items from another region."""
    n, d = vectors.shape
    chosen, came = rng.choice(n, n // 5, replace=False), other_region(n // 5, d, 11)
    now = vectors.copy()
    now[chosen] = came
    queries = now[rng.choice(n, 300, replace=False)]
    with softindex.open(place / "fifth", create=index, compaction="manual") as live:
        live.upsert(chosen, came)
        rows = honesty("in the delta", live.snapshot(), queries)
        live.compact()
        rows += honesty("compacted", live.snapshot(), queries)
    return rows + honesty("built again", softindex.build(now, threads=1), queries)


def replace_everything(live, vectors, queries):
    """Replace every item once, in tenths, and compare with a fresh build."""
    n, d = vectors.shape
    fresh = other_region(n, d, 8)
    for part in np.array_split(np.random.default_rng(9).permutation(n), 10):
        live.upsert(part, fresh[part])
        live.compact()
    return fresh


def run(options):
    """The tables of this section."""
    vectors = synth_balanced(options.items).vectors
    n, d = vectors.shape
    rng = np.random.default_rng(1)
    queries = vectors[rng.choice(n, 300, replace=False)]
    start = time.process_time()
    index = softindex.build(vectors, threads=1)
    built = time.process_time() - start
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        place = Path(folder)
        rows = []
        with softindex.open(place / "upserts", create=index, compaction="manual") as live:
            rows += upserts(live, folder, vectors)
        with softindex.open(place / "draws", create=index, compaction="manual") as live:
            static, changed = draws_beside_changes(live, index, queries)
            name = f"draw with {DELTA:,} rows in the delta and {REMOVED:.0%} removed"
            rows.append([name, f"{changed * 1e6:,.0f} us", f"{changed / static:.2f} x static"])
        with softindex.open(place / "folds", create=index, compaction="manual") as live:
            few = int(CHANGED * n)
            live.upsert(rng.choice(n, few, replace=False), other_region(few, d, 7))
            before, during = during_compaction(live, queries)
            rows.append(["p99 of draws before compaction", f"{np.quantile(before, 0.99) * 1e6:,.0f} us", ""])
            ratio = np.quantile(during, 0.99) / np.quantile(before, 0.99)
            rows.append(["p99 during compaction", f"{np.quantile(during, 0.99) * 1e6:,.0f} us", f"{ratio:.2f} x"])
        with softindex.open(place / "alone", create=index, compaction="manual") as live:
            live.upsert(rng.choice(n, few, replace=False), other_region(few, d, 7))
            live.snapshot()
            seconds, grown = compaction(live)
            rows.append([f"compaction of {CHANGED:.0%} changed", f"{seconds:.1f} s", f"{seconds / built:.2f} x build"])
            rows.append(["memory it added at its peak", f"{max(0.0, grown):,.0f} MB", ""])
        stated = replaced_fifth(place, index, vectors, rng)
        with softindex.open(place / "growth", create=index, compaction="manual") as live:
            fresh = replace_everything(live, vectors, queries)
            rows += compare_with_fresh(live, fresh, place, rng)
    title = f"{n:,} x {d}, temperature {TEMPERATURE}, one thread; a build takes {built:.1f} s of the processor"
    columns = ["a fifth replaced", "t", "KL", "total variation", "stated", "exceeded", "by twice and 0.01"]
    replaced = "the default's error after a fifth of the items was replaced by items from another region"
    return [Table(title, ["", "measured", "relative"], rows), Table(replaced, columns, stated)]


def compare_with_fresh(live, fresh, place, rng):
    """Size, divergence and latency after every item was replaced, over those of a fresh build."""
    built = softindex.build(fresh, threads=1)
    built.save(place / "fresh")
    snapshot = live.snapshot()
    queries = fresh[rng.choice(len(fresh), 300, replace=False)]
    sizes = disk_bytes(str(live.status().path)), disk_bytes(str(place / "fresh"))
    errors = [distances(one, queries, TEMPERATURE)[0].mean() for one in (snapshot, built)]
    functions = {
        "live": lambda query: snapshot.sample(query, temperature=TEMPERATURE, threads=1),
        "fresh": lambda query: built.sample(query, temperature=TEMPERATURE, threads=1),
    }
    interleave(functions, queries[:200])
    seconds = interleave(functions, queries[:200])
    return [
        ["size after replacing every item", f"{sizes[0] / 2**20:,.0f} MB", f"{sizes[0] / sizes[1]:.2f} x fresh"],
        ["KL after replacing every item", f"{errors[0]:.1e}", f"{errors[0] / errors[1]:.2f} x fresh"],
        [
            "draw after replacing every item",
            f"{seconds['live'] * 1e6:,.0f} us",
            f"{seconds['live'] / seconds['fresh']:.2f} x fresh",
        ],
    ]
