"""Twenty million vectors from a memmap, as float32 and in a byte per number: memory, build, load, draws and error."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.tables import Table
from softindex.evaluate.datasets import fill_synth

DIM, GROUPS = 64, 4000

BUILD = """
import json, resource, sys, time
import numpy as np, softindex
vectors = np.load(sys.argv[1], mmap_mode="r")
begin = time.perf_counter()
index = softindex.build(vectors, storage=sys.argv[3], progress=True)
built = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
begin = time.perf_counter()
index.save(sys.argv[2])
print(json.dumps({"build": built, "peak": peak, "save": time.perf_counter() - begin, "clusters": index.clusters,
                  "rounding": index.parameters.get("rounding")}))
"""

DRAW = """
import json, re, sys, time
import numpy as np, softindex
begin = time.perf_counter()
index = softindex.load(sys.argv[2])
loaded = time.perf_counter() - begin
queries = np.array(np.load(sys.argv[1], mmap_mode="r")[::len(index) // 300][:300])
result = {"load": loaded, "methods": {}}
for method in ("s-2ls", "sd-2ls"):
    for name in ("first", "again"):
        times = []
        for query in queries:
            begin = time.perf_counter()
            draws = index.sample(query, temperature=0.1, method=method, threads=1)
            times.append(time.perf_counter() - begin)
        result["methods"][f"{method}, {name} pass"] = float(np.median(times))
for name, call in {
    "exact": lambda query: index.sample(query, temperature=0.1, method="exact", threads=1),
    "top_k, ten best, proven": lambda query: index.top_k(query, 10, threads=1),
}.items():
    times = []
    for query in queries[:20]:
        begin = time.perf_counter()
        call(query)
        times.append(time.perf_counter() - begin)
    result["methods"][name] = float(np.median(times))
# Every page of the items has been read by now.
result["resident"] = int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
print(json.dumps(result))
"""

COMPARE = """
import json, sys
import numpy as np, softindex
vectors, index = np.load(sys.argv[1], mmap_mode="r"), softindex.load(sys.argv[2])
found = []
for row in range(0, len(index), len(index) // 8)[:8]:
    query, logits = np.array(vectors[row]), np.empty(len(index))
    for begin in range(0, len(index), 1 << 18):
        logits[begin : begin + (1 << 18)] = vectors[begin : begin + (1 << 18)].astype(np.float64) @ query / 0.1
    logits -= np.logaddexp.reduce(logits)
    other = index.log_prob(query, np.arange(len(index)), temperature=0.1, method="exact")
    found.append(float(np.exp(logits) @ (logits - other)))
print(json.dumps(found))
"""


def write_vectors(path, n):
    """synth-unbalanced with more groups, written block by block so that this process stays small."""
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, DIM))
    fill_synth(out, balanced=False, groups=GROUPS)
    out.flush()


def child(script, *arguments):
    """Run the script in a separate process, to measure its memory, and return what it printed."""
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def measure(source, folder, storage, size):
    """Build, save, load and draw with one storage, each in a fresh process: rows of a table."""
    target = Path(folder) / storage
    built = child(BUILD, source, target, storage)
    drawn = child(DRAW, source, target)
    kept = sum(path.stat().st_size for path in target.iterdir())
    rows = [
        ["build", f"{built['build']:.0f} s, {built['clusters']:,} clusters"],
        [
            "peak resident memory of the build, pages of the source included",
            f"{built['peak'] / 1e9:.2f} GB = {built['peak'] / size:.2f} x the vectors",
        ],
        ["save", f"{built['save']:.0f} s"],
        ["on disk", f"{kept / 1e9:.2f} GB"],
        ["load by mmap", f"{drawn['load'] * 1e3:.1f} ms"],
        ["resident memory after scans of every item", f"{drawn['resident'] / 1e9:.2f} GB"],
        *([f"median call, {name}", f"{seconds * 1e6:.0f} microseconds"] for name, seconds in drawn["methods"].items()),
    ]
    if built["rounding"] is not None:
        lost, far = built["rounding"], child(COMPARE, source, target)
        rows.append(["distance from the vectors given", f"{lost['relative']:.1e} of their length"])
        rows.append(["mean KL of the float32 softmax to `exact`, t = 0.1, 8 queries", f"{np.mean(far):.1e}"])
    shutil.rmtree(target)
    return rows


def run(options):
    """One table per storage."""
    n, tables = options.large_items, []
    size = n * DIM * 4
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = Path(folder) / "vectors.npy"
        write_vectors(source, n)
        for storage in options.large_storages:
            title = f"{n:,} x {DIM} float32 ({size / 1e9:.2f} GB) given as a memmap, kept as {storage}"
            tables.append(Table(title, ["", "measured"], measure(source, folder, storage, size)))
    return tables
