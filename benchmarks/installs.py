"""Two builds of softindex on the calls of `draws`: `python -m benchmarks.installs FIRST SECOND [--items N]`.

FIRST and SECOND are directories made by `pip install --no-deps --target DIRECTORY WHEEL`.  Run it with an interpreter
that has the dependencies but no softindex of its own.  Each install runs in a process of its own; they take turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TEMPERATURE = 0.1
CALLS = {
    "exact": ("plain", {"method": "exact"}),
    "2ls": ("plain", {"method": "2ls", "probes": 0}),
    "s-2ls": ("plain", {"method": "s-2ls", "probes": 0}),
    "sd-2ls, no probes": ("plain", {"method": "sd-2ls", "probes": 0}),
    "sd-2ls, published (full covariances)": ("full", {"method": "sd-2ls", "probes": 0}),
    "sd-2ls, adaptive probes (the default)": ("plain", {}),
}
"""For each row of `draws`, the index it uses and its options."""
STRETCH = 40
"""Calls of one install before it is the other's turn; a tenth of it for exact draws."""


def work(folder: Path) -> None:
    """Build the indexes, or load them, then time the calls named on standard input until it ends."""
    import softindex
    from softindex.kernels import _native

    queries = np.load(folder / "queries.npy")
    indexes = {name: folder / name for name in ("plain", "full")}
    for name, path in indexes.items():
        if not path.exists():
            options = {"dispersion": "full"} if name == "full" else {}
            vectors = np.load(folder / "vectors.npy")
            softindex.build(vectors, clusters=min(1024, len(vectors) // 40), **options).save(path)
    loaded = {name: softindex.load(path) for name, path in indexes.items()}
    print(_native.__file__, flush=True)
    for line in sys.stdin:
        name, begin, count = line.rsplit(maxsplit=2)
        which, options = CALLS[name]
        sample, rows = loaded[which].sample, [queries[(int(begin) + i) % len(queries)] for i in range(int(count))]
        start = time.process_time()
        for query in rows:
            sample(query, temperature=TEMPERATURE, seed=1, threads=1, **options)
        print((time.process_time() - start) / len(rows), flush=True)


def start(install: str, folder: Path) -> subprocess.Popen[str]:
    """A process that uses this install."""
    path = os.pathsep.join([os.path.abspath(install), os.getcwd()])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.installs", "--work", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    used = process.stdout.readline().strip()
    if not used.startswith(os.path.abspath(install)):
        process.kill()
        sys.exit(f"the process loaded {used!r} instead of {install}; use an interpreter without softindex")
    return process


def measure(processes: list[subprocess.Popen[str]], name: str, rounds: int) -> np.ndarray:
    """Seconds of processor time for a call, (rounds, 2)."""
    count, seconds = max(1, STRETCH // 10) if name == "exact" else STRETCH, np.empty((rounds, 2))
    for turn in range(-1, rounds):  # the first turn warms up
        for side in (0, 1) if turn % 2 else (1, 0):
            processes[side].stdin.write(f"{name} {turn * count} {count}\n")
            processes[side].stdin.flush()
            seconds[max(turn, 0), side] = float(processes[side].stdout.readline())
    return seconds


def compare(installs: list[str], vectors: np.ndarray, rounds: int) -> str:
    """The table of all calls, as Markdown."""
    from benchmarks.tables import Table  # it imports softindex, which is found only now

    with tempfile.TemporaryDirectory() as place:
        folder, rows = Path(place), []
        np.save(folder / "vectors.npy", vectors)
        choice = np.random.default_rng(1).choice(len(vectors), size=min(2000, len(vectors)), replace=False)
        np.save(folder / "queries.npy", vectors[choice])
        processes = [start(install, folder) for install in installs]
        for name in CALLS:
            seconds = measure(processes, name, rounds)
            ratio = np.quantile(seconds[:, 1] / seconds[:, 0], [0.25, 0.5, 0.75])
            cells = [f"{value * 1e6:,.1f}" for value in np.median(seconds, axis=0)]
            rows.append([name, *cells, f"{ratio[1]:.3f}", f"{ratio[0]:.3f} to {ratio[2]:.3f}"])
        for process in processes:
            process.communicate()
    columns = ("method", "first, us", "second, us", "second / first", "middle half of the rounds")
    n, d = vectors.shape
    title = f"{n:,} x {d}: processor time of one call, medians of {rounds} interleaved rounds"
    return Table(title, columns, rows).markdown()


def main() -> None:
    """Print the table of two installs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("installs", nargs="*", help="two directories")
    parser.add_argument("--vectors", help="a .npy file of vectors instead of generated ones")
    parser.add_argument("--items", type=int, default=1_000_000, help="items of synth-unbalanced")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    if len(options.installs) != 2:
        parser.error("name two installs")
    sys.path.insert(0, os.path.abspath(options.installs[0]))
    from softindex.evaluate.datasets import synth_unbalanced

    vectors = np.load(options.vectors) if options.vectors else synth_unbalanced(options.items).vectors
    print(compare(options.installs, vectors, options.rounds))


if __name__ == "__main__":
    main()
