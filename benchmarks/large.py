"""Twenty million vectors from a memmap: peak memory of the build, time to load, and draws."""

import json
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
index = softindex.build(vectors, progress=True)
built = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
begin = time.perf_counter()
index.save(sys.argv[2])
print(json.dumps({"build": built, "peak": peak, "save": time.perf_counter() - begin, "clusters": index.clusters}))
"""

DRAW = """
import json, sys, time
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
print(json.dumps(result))
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


def run(options):
    """Build, save, load and draw, each in a fresh process."""
    n = options.large_items
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source, target = Path(folder) / "vectors.npy", Path(folder) / "index"
        write_vectors(source, n)
        built = child(BUILD, source, target)
        drawn = child(DRAW, source, target)
    size = n * DIM * 4
    rows = [
        ["build", f"{built['build']:.0f} s, {built['clusters']:,} clusters"],
        [
            "peak resident memory of the build",
            f"{built['peak'] / 1e9:.2f} GB = {built['peak'] / size:.2f} x the vectors",
        ],
        ["save", f"{built['save']:.0f} s"],
        ["load by mmap", f"{drawn['load'] * 1e3:.1f} ms"],
        *([f"median draw, {name}", f"{seconds * 1e6:.0f} microseconds"] for name, seconds in drawn["methods"].items()),
    ]
    return [Table(f"{n:,} x {DIM} float32 ({size / 1e9:.2f} GB) given as a memmap", ["", "measured"], rows)]
