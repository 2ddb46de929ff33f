"""Kills a writer at random moments, round after round, and lets another process verify what it left.

`python -m tests.live.crashing --rounds 1000`, or `make crash`.  Every step of the writer is decided by its number, so
that the verifier knows what must be there: step j upserts some items, one of which says j, and then removes some.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

import softindex
from softindex.live import folding

D, IDS, MARK = 8, 300, 10_000
BATCHES = (1, 5, 60)


def step(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What step j upserts, ids and vectors, the last of which is the mark, and the ids that it removes then."""
    rng = np.random.default_rng(number)
    count = int(rng.choice(BATCHES))
    ids = np.append(rng.choice(IDS, count, replace=False), MARK)
    vectors = rng.standard_normal((count + 1, D)).astype(np.float32)
    vectors[-1, 0] = number
    return ids, vectors, rng.choice(IDS, int(rng.choice((1, 20))), replace=False)


class Model:
    """The items after each step, computed once."""

    def __init__(self) -> None:
        self.number = -1
        self.items: dict[int, bytes] = {}
        self.before: dict[int, bytes] = {}

    def advance(self, number: int) -> None:
        """Go on to the state after this step; `before` is that between its upsert and its removals."""
        while self.number < number:
            self.number += 1
            ids, vectors, gone = step(self.number)
            self.items |= {int(i): vector.tobytes() for i, vector in zip(ids, vectors, strict=True)}
            self.before = dict(self.items)
            for i in gone.tolist():
                self.items.pop(i, None)


def mark_of(snapshot: softindex.Index) -> int:
    """The last step whose upsert is there."""
    return int(snapshot.vectors(MARK)[0])


def write(path: str, pipe: int) -> None:
    """Go on from the last step, and report every change once it is acknowledged."""
    # Small clusters and a small delta: compactions run all the time.
    folding.MOST_ROWS = 40
    live = softindex.open(path)
    # The last step may lack its removals.
    number = mark_of(live.snapshot())
    gone = step(number)[2]
    while True:
        live.remove(gone, unknown="ignore")
        os.write(pipe, b"r%d\n" % number)
        number += 1
        ids, vectors, gone = step(number)
        live.upsert(ids, vectors)
        os.write(pipe, b"u%d\n" % number)


def verify(path: str, acknowledged: str, model: Model) -> int:
    """Check the catalogue as another process sees it; returns the last step that is there."""
    with softindex.open(path, read_only=True) as live:
        snapshot = live.snapshot()
        number = mark_of(snapshot)
        least = int(acknowledged[1:]) if acknowledged else 0
        assert number >= least, f"step {least} was acknowledged, but only {number} is there"
        model.advance(number)
        held = {
            int(i): vector.tobytes() for i, vector in zip(snapshot.ids, snapshot.vectors(snapshot.ids), strict=True)
        }
        removed = held == model.items
        assert removed or held == model.before, "the items are those of no moment"
        assert removed or acknowledged != f"r{number}", "a removal was acknowledged and is not there"
        query = np.random.default_rng(number).standard_normal(D).astype(np.float32)
        query[0] = 0.0
        for method in ("exact", "certified", "sd-2ls"):
            drawn = snapshot.sample(query, 50, temperature=0.5, method=method, seed=number).ids
            assert set(drawn.tolist()) <= held.keys(), "an item was drawn that is not there"
            law = snapshot.log_prob(query, sorted(held), temperature=0.5, method=method)
            assert abs(np.exp(law).sum() - 1) < 1e-4, "probabilities do not sum to one"
    return number


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """Run work(pipe) in a forked process; returns its id and the other end of the pipe."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(out)
            work(into)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(into)
    return child, out


def read_all(pipe: int) -> str:
    with os.fdopen(pipe) as file:
        return file.read()


def run(rounds: int, seed: int, folder: str) -> tuple[int, int]:
    """Steps and kills that were survived."""
    path = str(Path(folder) / "catalogue")
    chance = random.Random(seed)
    os.waitpid(in_child(lambda pipe: _create(path))[0], 0)
    acknowledged, model, last = "", Model(), 0
    for number in range(rounds):
        child, pipe = in_child(lambda pipe: write(path, pipe))
        time.sleep(chance.choice((0.05, 0.4, 1.5)) * chance.random())
        os.kill(child, signal.SIGKILL)
        lines = read_all(pipe).split()
        os.waitpid(child, 0)
        acknowledged = lines[-1] if lines else acknowledged
        checker, pipe = in_child(lambda pipe, last=acknowledged: os.write(pipe, b"%d" % verify(path, last, model)))
        seen = read_all(pipe)
        assert os.waitpid(checker, 0)[1] == 0, f"round {number}: the catalogue is wrong"
        last = int(seen)
        model.advance(last - 1)
        if number % 100 == 99:
            sys.stdout.write(f"{number + 1} kills, {last} steps\n")
            sys.stdout.flush()
    return last, rounds


def _create(path: str) -> None:
    ids, vectors, gone = step(0)
    with softindex.open(path, create=D) as live:
        live.upsert(ids, vectors)
        live.remove(gone, unknown="ignore")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", default=None, help="Where the catalogue is made; a temporary directory if left out."
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        steps, kills = run(options.rounds, options.seed, folder)
    sys.stdout.write(f"survived {kills} kills in {steps} steps\n")


if __name__ == "__main__":
    sys.exit(main())
