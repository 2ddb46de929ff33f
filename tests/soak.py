"""Threads and forked children draw from, save, load and audit one index; nothing may differ, hang or grow.

Run it for ten minutes with `make soak`, or `make soak SECONDS=60`.
"""

import argparse
import faulthandler
import gc
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

import softindex

THREADS = 16
CHILDREN = 3
"""Forked children at a time."""
PATIENCE = 60
"""Seconds after which a child counts as hung: it works for a fraction of a second."""
GROWTH = 32 << 20
"""Bytes by which the memory may grow beside a twentieth of it: allocators keep what threads free."""


class Work:
    """One index in a directory, and what every kind of call on it must return."""

    def __init__(self, folder):
        generator = np.random.default_rng(0)
        self.folder, self.path = folder, folder / "index"
        vectors = generator.standard_normal((5000, 32), dtype=np.float32)
        self.index = softindex.build(vectors, clusters=70, tree=True, codes=True, threads=1)
        self.queries = generator.standard_normal((24, 32), dtype=np.float32)
        self.index.save(self.path)
        self.actions = {
            "sample": lambda index: self.draws(index, threads=1),
            "sample on threads": lambda index: self.draws(index, threads=3),
            "slate": lambda index: self.draws(index, replace=False, exclude=[1, 2, 3]),
            "certified": lambda index: self.draws(index, method="certified", threads=2),
            "tree": lambda index: self.draws(index, method="sd-hierarchical"),
            "top_k": lambda index: index.top_k(self.queries, 5, threads=2).ids,
            "log_partition": lambda index: index.log_partition(self.queries, temperature=0.5, method="exact").value,
            "audit": self.audit,
        }
        self.expected = {name: np.asarray(act(self.index)).tobytes() for name, act in self.actions.items()}
        self.weights = [1.0 if name == "audit" else 30.0 for name in self.actions]

    def draws(self, index, **options):
        drawn = index.sample(self.queries, 4, temperature=0.5, seed=5, **options)
        return np.concatenate([drawn.ids.astype(np.float64), drawn.log_prob])

    def audit(self, index):
        """All that does not depend on the clock."""
        audit = index.audit(self.queries[:4], temperatures=[0.5], methods=["exact", "sd-2ls"], threads=2)
        return [[row.kl.value, row.total_variation.value, row.items_scored] for row in audit.rows]

    def step(self, choice):
        """One call on the index, on one just loaded, or on one just saved; returns the name of what went wrong."""
        name = choice.choices(list(self.actions), self.weights)[0]
        index, place = self.index, choice.random()
        if place < 0.1:
            index = softindex.load(self.path, mmap=choice.random() < 0.8)
        elif place < 0.15:
            # Sometimes where others load from.
            target = self.path if choice.random() < 0.5 else self.folder / f"own-{os.getpid()}-{threading.get_ident()}"
            index.save(target)
            index = softindex.load(target)
        return name, np.asarray(self.actions[name](index)).tobytes() == self.expected[name]


class Soak:
    """The threads, the children, and what was counted."""

    def __init__(self, folder):
        self.work, self.ended = Work(folder), threading.Event()
        self.done, self.failures = Counter(), []
        self.memory = []

    def run_thread(self, seed):
        choice = random.Random(seed)
        try:
            while not self.ended.is_set():
                name, good = self.work.step(choice)
                self.done[name] += 1
                if not good:
                    self.failures.append(f"{name} differs in a thread")
        except BaseException as error:
            self.failures.append(f"a thread ended with {error!r}")
            raise

    def fork(self, seed):
        """Start a child that makes a few calls; returns its number and when it must have ended."""
        child = os.fork()
        if child:
            return child, time.monotonic() + PATIENCE
        code = 1
        try:
            choice = random.Random(seed)
            code = 0 if all(self.work.step(choice)[1] for _ in range(10)) else 3
        finally:
            os._exit(code)

    def reap(self, children):
        """The children that still run; counts the others."""
        running = []
        for child, deadline in children:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                self.done["children"] += 1
                if status:
                    self.failures.append(f"a child ended with {os.waitstatus_to_exitcode(status)}")
            elif time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self.failures.append("a child hung")
            else:
                running.append((child, deadline))
        return running

    def run(self, seconds):
        threads = [threading.Thread(target=self.run_thread, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        begin, seed, children = time.monotonic(), 1000, []
        while time.monotonic() < begin + seconds and not self.failures:
            children = self.reap(children)
            if len(children) < CHILDREN:
                seed += 1
                children.append(self.fork(seed))
            self.memory.append(resident_bytes())
            time.sleep(0.1)
        self.ended.set()
        for thread in threads:
            thread.join()
        while children:
            children = self.reap(children)
            time.sleep(0.01)

    def check_memory(self):
        """Compare the last fifth of the time with the second."""
        part = len(self.memory) // 5
        early, late = statistics.median(self.memory[part : 2 * part]), statistics.median(self.memory[-part:])
        if late > early * 1.05 + GROWTH:
            self.failures.append(f"memory grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB")
        return early, late


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    seconds = parser.parse_args().seconds
    # Where the threads hang, say where.
    faulthandler.dump_traceback_later(seconds + 2 * PATIENCE, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder))
        files = open_files()
        soak.run(seconds)
        early, late = soak.check_memory()
        if open_files() != files:
            soak.failures.append(f"{files} files were open before and {open_files()} are now")
        left = [name for name in os.listdir(folder) if name.startswith(".")]
        if left:
            soak.failures.append(f"saves left {left} behind")
    print(", ".join(f"{count} {name}" for name, count in sorted(soak.done.items())))
    print(f"memory {early / 1e6:.0f} MB early, {late / 1e6:.0f} MB late; {files} open files")
    print("\n".join(dict.fromkeys(soak.failures)) or "all results identical")
    sys.exit(1 if soak.failures else 0)


if __name__ == "__main__":
    main()
