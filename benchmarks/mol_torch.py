"""What the speed-up of brute force over torch depends on: torch's blocks, its threads, how they wait, and its memory.

By default glibc returns freed memory to the system, and each page of the next large tensor costs a fault; whether it
does depends on what was allocated before.  "Memory kept" tells it to keep everything.  The pool of threads and glibc
read their settings when they start, so each setting is measured in a process of its own: `python -m
benchmarks.mol_torch THREADS` prints one.
"""

import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

from benchmarks.mol import QUERIES, K, items_of, model
from benchmarks.tables import Table
from softindex import mol
from softindex.evaluate.timing import take_turns

ITEMS = 20_000
BLOCKS = {"all items at once": ITEMS, "blocks of 2,000 items": 2_000}
ROUNDS = 15
KEPT = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "40000000000"}
SETTINGS = {
    "1": {"threads": "1"},
    "1, memory kept": {"threads": "1", **KEPT},
    "2, which spin while they wait (default)": {"threads": "2"},
    "2, which spin, memory kept": {"threads": "2", **KEPT},
    "2, which sleep while they wait": {"threads": "2", "OMP_WAIT_POLICY": "passive"},
    "2, which sleep, memory kept": {"threads": "2", "OMP_WAIT_POLICY": "passive", **KEPT},
}


def contestants(threads):
    """Functions of a batch of queries: brute force of an index, and the torch module in blocks of each size."""
    import torch

    torch.set_num_threads(threads)
    similarity, items = model((8, 4)), items_of(ITEMS)
    index, tensor = mol.build(similarity, items), torch.from_numpy(items)

    def in_blocks(size):
        def best(queries):
            with torch.no_grad():
                parts = [similarity(torch.from_numpy(queries), part) for part in tensor.split(size)]
                return torch.topk(torch.cat(parts, dim=1), K).indices

        return best

    ours = {"softindex": lambda queries: index.top_k(queries, K, method="brute-force", threads=threads)}
    return ours | {name: in_blocks(size) for name, size in BLOCKS.items()}


def page_faults():
    """Number of pages that this process got from the system so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(threads):
    """Medians of each contestant, in turns: milliseconds by the clock and of the processor, and thousands of faults."""
    rng = np.random.default_rng(1)
    batches = [rng.standard_normal((QUERIES, 64), dtype=np.float32) for _ in range(ROUNDS)]
    functions = contestants(threads)
    take_turns(functions, batches[:2], stretch=1)
    clocks = {"clock": (time.perf_counter, 1e3), "processor": (time.process_time, 1e3), "faults": (page_faults, 1e-3)}
    return {
        name: {
            key: scale * float(np.median(values))
            for key, values in take_turns(functions, batches, stretch=3, clock=clock).items()
        }
        for name, (clock, scale) in clocks.items()
    }


def measure_apart(setting):
    """The same in a process with this setting."""
    environment = os.environ | {"OMP_NUM_THREADS": setting["threads"]}
    environment |= {name: value for name, value in setting.items() if name != "threads"}
    command = [sys.executable, "-m", "benchmarks.mol_torch", setting["threads"]]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(label, found):
    """One row for each size of blocks."""
    clock, processor = found["clock"], found["processor"]
    return [
        [
            label,
            name,
            f"{clock['softindex']:,.0f}",
            f"{clock[name]:,.0f}",
            f"{clock[name] / clock['softindex']:.1f}x",
            f"{processor[name] / processor['softindex']:.1f}x",
            f"{found['faults'][name]:.0f}",
        ]
        for name in BLOCKS
    ]


def run(options):
    """One row for each setting of torch."""
    rows = [row for label, setting in SETTINGS.items() for row in rows_of(label, measure_apart(setting))]
    columns = ["threads", "torch scores", "softindex, ms", "torch, ms", "ratio", "ratio of processor time",
               "thousands of page faults of torch"]  # fmt: skip
    title = (
        f"The {K} best of {ITEMS:,} items for {QUERIES} queries at once, 8 x 4 components of 32: brute force against "
        "the torch module, by what torch is given (medians, in turns)"
    )
    return [Table(title, columns, rows)]


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
