"""How cost grows with the number of items: latency, build time and memory, with fitted exponents."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.tables import Table
from softindex.evaluate.charts import Axis, Series, figure, plot
from softindex.evaluate.datasets import fill_synth

DIM, TEMPERATURE = 64, 0.1
SIZES = (10_000, 46_000, 215_000, 1_000_000, 4_600_000, 20_000_000)
FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "growth.svg"
METHODS = {
    "NumPy exact": 5,
    "exact": 4,
    "certified, codes": 7,
    "2ls, published": 1,
    "s-2ls, published": 2,
    "sd-2ls, rank 8, no probes": 0,
    "sd-2ls (default)": 6,
}
"""Names and their styles in the plot."""

MEASURE = """
import json, os, sys, time
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np, softindex
from benchmarks.peers import NumpyExact
from softindex.evaluate.timing import take_turns
vectors = np.load(sys.argv[1], mmap_mode="r")
temperature = float(sys.argv[2])
begin = time.perf_counter()
index = softindex.build(vectors, codes=True)
built = time.perf_counter() - begin
rows = np.random.default_rng(1).choice(len(index), size=200, replace=False)
queries = np.array(index.items.vectors[np.sort(rows)])
np.random.default_rng(2).shuffle(queries)
exact = NumpyExact(index.items.vectors)
def ours(method, probes=None):
    return lambda query: index.sample(query, temperature=temperature, method=method, probes=probes, threads=1)
functions = {
    "NumPy exact": lambda query: exact.draw(query, temperature),
    "exact": ours("exact"),
    "certified, codes": ours("certified"),
    "2ls, published": ours("2ls", 0),
    "s-2ls, published": ours("s-2ls", 0),
    "sd-2ls, rank 8, no probes": ours("sd-2ls", 0),
    "sd-2ls (default)": ours("sd-2ls"),
}
few = max(20, min(200, int(2e8 / len(index))))
take_turns(functions, queries[:2])
seconds = take_turns(functions, queries[:few])
items = index.items.vectors.nbytes
# Eight bits per value and a float32 scale per item; two float32 bounds per cluster.
codes = items // 4 + 4 * len(index) + 8 * index.clusters
index.save(sys.argv[3])
size = sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(sys.argv[3]) for name in names)
print(json.dumps({
    "build": built, "clusters": index.clusters, "items": items, "codes": codes, "index": size,
    "seconds": {name: float(np.median(values)) for name, values in seconds.items()},
}))
"""


def measure(n, folder):
    """All measurements on n items, in a separate process."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        source, target = Path(place) / "vectors.npy", Path(place) / "index"
        out = np.lib.format.open_memmap(source, mode="w+", dtype=np.float32, shape=(n, DIM))
        fill_synth(out, balanced=False)
        out.flush()
        del out
        arguments = [sys.executable, "-c", MEASURE, str(source), str(TEMPERATURE), str(target)]
        done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def exponent(sizes, values):
    """The slope of log value against log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def run(options):
    """The table and the figure; the exponents are in the last row."""
    sizes = [n for n in SIZES if n <= options.large_items]
    measured = [measure(n, options.folder) for n in sizes]
    rows, latencies = [], {name: [one["seconds"][name] for one in measured] for name in METHODS}
    for n, one in zip(sizes, measured, strict=True):
        extra = one["index"] - one["items"] - one["codes"]
        rows.append(
            [
                f"{n:,}",
                *(f"{one['seconds'][name] * 1e6:,.0f}" for name in METHODS),
                f"{one['build']:,.1f}",
                f"{one['items'] / 1e6:,.1f} + {one['codes'] / 1e6:,.1f} + {extra / 1e6:,.1f}",
            ]
        )
    builds = [one["build"] for one in measured]
    rows.append(
        [
            "exponent",
            *(f"{exponent(sizes, latencies[name]):.2f}" for name in METHODS),
            f"{exponent(sizes, builds):.2f}",
            "",
        ]
    )
    draw(sizes, latencies, builds)
    title = (
        f"synth-unbalanced at d = {DIM}, t = {TEMPERATURE}, sqrt(n) clusters: microseconds per draw (medians, "
        "1 thread), seconds to build on all cores, megabytes of vectors + codes + everything else"
    )
    return [Table(title, ["items", *METHODS, "build", "memory"], rows)]


def draw(sizes, latencies, builds):
    """Write the figure beside the page."""
    n = np.array(sizes, float)
    everything = np.concatenate([np.array(values) for values in latencies.values()]) * 1e6
    x, y = Axis.around("items", n, log=True), Axis.around("microseconds per draw", everything, log=True)
    lines = [Series(name, n, np.array(values) * 1e6, METHODS[name], joined=True) for name, values in latencies.items()]
    text = "; ".join(f"{name} grows as n to the {exponent(sizes, values):.2f}" for name, values in latencies.items())
    seconds = np.array(builds)
    build = Series("build", n, seconds, 3, joined=True)
    panels = [
        ("one draw", plot(lines, x, y, title="Latency against the number of items", text=text)),
        (
            "build",
            plot(
                [build],
                x,
                Axis.around("seconds to build", seconds, log=True),
                title="Build time against the number of items",
                text=f"grows as n to the {exponent(sizes, builds):.2f}",
            ),
        ),
    ]
    labels = [*METHODS.items(), ("build, all cores", 3)]
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_text(figure(panels, labels, title="How cost grows with the number of items", text=text))
