"""A million logged decisions over a million items: writing the log, replaying it, and evaluating another policy."""

import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import softindex
from benchmarks.tables import Table
from softindex import decisions
from softindex.evaluate.datasets import synth_unbalanced

LOGGED, EVALUATED = 0.1, 0.08
BLOCK, THREADS, NOISE = 16_384, 2, 0.05


def write_log(folder, index, vectors, count):
    """Seconds to draw for `count` queries and to log what was drawn; a click is likely for items like the first."""
    rng = np.random.default_rng(1)
    drawing, logging = 0.0, 0.0
    with decisions.Log(folder) as log:
        for begin in range(0, count, BLOCK):
            near = vectors[rng.integers(len(vectors), size=min(BLOCK, count - begin))]
            queries = near + NOISE * rng.standard_normal(near.shape, np.float32)
            start = time.perf_counter()
            draws = index.sample(queries, temperature=LOGGED, seed=begin, threads=THREADS)
            drawn = time.perf_counter()
            names = log.append(queries, draws, temperature=LOGGED)
            clicked = rng.random(len(names)) < 0.05 + 0.1 * (draws.ids[:, 0] % 3 == 0)
            log.add_rewards(np.array(names)[clicked], np.ones(clicked.sum()))
            drawing, logging = drawing + drawn - start, logging + time.perf_counter() - drawn
    return drawing, logging


def evaluate(folder):
    """Score, estimate and replay in this process; prints seconds and the memory that it took at most."""
    start = time.perf_counter()
    index = softindex.load(folder / "index")
    log = decisions.Log(folder / "log")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scored = decisions.score(log, decisions.Policy(index, EVALUATED, threads=THREADS), progress=True)
    done = time.perf_counter()
    values = [decisions.ips(scored), decisions.snips(scored), decisions.clipped(scored, 20.0)]
    estimated = time.perf_counter()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = decisions.replay(decisions.Log(folder / "tenth"), index, progress=True)
    replayed = time.perf_counter()
    print("seconds", done - start, estimated - done, replayed - estimated, before / 2**20, memory / 2**20, found.intact)
    for value in values:
        size = value.diagnosis.effective_sample_size
        print(f"value:{value.estimator}:{value.value:.4f}:{value.low:.4f} to {value.high:.4f}:{size:,.0f}")


def prepare(folder, items):
    """Make the index and the logs, unless the folder has them; returns the seconds that drawing and logging took."""
    if not (folder / "times.npy").exists():
        vectors = synth_unbalanced(items).vectors
        index = softindex.build(vectors, progress=True)
        index.save(folder / "index")
        times = write_log(folder / "log", index, vectors, items)
        write_log(folder / "tenth", index, vectors, items // 10)
        np.save(folder / "times.npy", times)
    return np.load(folder / "times.npy")


def run(options):
    """Log and evaluate as many decisions as there are items."""
    place = contextlib.nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory()
    with place as path:
        folder = Path(path)
        drawing, logging = prepare(folder, options.items)
        size = sum(file.stat().st_size for file in (folder / "log").iterdir()) / 2**20
        command = [sys.executable, "-c", f"from benchmarks.decisions import *; evaluate(Path({str(folder)!r}))"]
        printed = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()
    times = next(line for line in printed if line.startswith("seconds")).split()[1:]
    scoring, estimating, replaying, before, most = map(float, times[:-1])
    if times[-1] != "True":
        raise AssertionError("a propensity did not come out the same")
    rows = [
        ["draw", f"{drawing:,.0f}", ""],
        ["log, with rewards", f"{logging:,.0f}", f"{size:,.0f} MB of Parquet"],
        ["load the index, score a policy", f"{scoring:,.0f}", f"{before:.1f} GB before, {most:.1f} GB at most"],
        ["three estimates with bootstrap intervals", f"{estimating:,.1f}", ""],
        ["replay a tenth of it", f"{replaying:,.0f}", "every bit the same"],
    ]
    n = f"{options.items:,}"
    title = f"{n} decisions over {n} items of 100 numbers, logged at t = {LOGGED}, {THREADS} threads"
    values = [line.split(":")[1:] for line in printed if line.startswith("value")]
    columns = ["estimator", "value", "95 % interval", "effective sample size"]
    return [Table(title, ["step", "seconds", ""], rows), Table(f"Value at t = {EVALUATED}", columns, values)]
