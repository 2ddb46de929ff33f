"""A build takes at most 2.5 times the memory of the vectors, the caller's own copy included, whatever their shape."""

import json
import subprocess
import sys

import pytest

ALLOWANCE = 112 << 20
"""Bytes beside that: blocks in work, for two threads. How they fall together differs by 15 MB from run to run."""
PER_ITEM = 48
"""Bytes beside that for every item: clusters, positions and ids, which are not small where vectors are short."""

SCRIPT = """
import json, re, sys
import numpy as np
import softindex
from softindex.index import to_stored

def memory(name):
    # Not getrusage: its peak includes what the process that started this one held at that moment.
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

options = json.loads(sys.argv[1])
n, d, biased = options.pop("n"), options.pop("d"), options.pop("bias", False)
rng = np.random.default_rng(0)
softindex.build(rng.standard_normal((300, 16), dtype=np.float32), threads=2)
before = memory("VmRSS")
vectors = np.empty((n, d), np.float32)
for part in np.array_split(vectors, 64):
    rng.standard_normal(part.shape, dtype=np.float32, out=part)
if biased:
    options["bias"] = rng.standard_normal(n).astype(np.float32)
index = softindex.build(vectors, threads=2, **options)
print(memory("VmHWM") - before, sum(array.nbytes for array in to_stored(index).arrays.values()))
"""

SHAPES = {
    "wide, more than one block": {"n": 900, "d": 10_000, "clusters": 1},
    "square": {"n": 3000, "d": 3000, "clusters": 1},
    "few wide rows": {"n": 60, "d": 100_000},
    "short rows": {"n": 1_000_000, "d": 2, "clusters": 300},
    "with a bias": {"n": 20_000, "d": 1024, "clusters": 4, "bias": True, "dispersion": "none"},
    "a tree": {"n": 3000, "d": 1200, "tree": True, "clusters": 4},
}
SMALLER = {
    "one byte": ({"n": 400_000, "d": 64, "storage": "int8"}, 1.5),
    "two bytes, in one cluster": ({"n": 30_000, "d": 1024, "clusters": 1, "storage": "int16"}, 1.75),
}
"""With items in fewer bits, and times the vectors: these, the index, and nothing else that grows with it."""


def run(options):
    """Peak memory of a build in a process of its own, the vectors included, and the bytes of the index."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return map(int, done.stdout.split())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", SHAPES)
def test_a_build_takes_little_more_memory_than_its_result(name):
    peak, index = run(SHAPES[name])
    vectors = 4 * SHAPES[name]["n"] * SHAPES[name]["d"]
    # Where clusters and outliers are many beside the items, the index itself is more than a quarter larger than them.
    more = max(0, index - 1.25 * vectors)
    assert peak <= 2.5 * vectors + more + PER_ITEM * SHAPES[name]["n"] + ALLOWANCE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", SMALLER)
def test_a_build_in_fewer_bits_never_holds_the_vectors_as_floats(name):
    options, times = SMALLER[name]
    peak, _ = run(options)
    assert peak <= times * 4 * options["n"] * options["d"] + PER_ITEM * options["n"] + ALLOWANCE
