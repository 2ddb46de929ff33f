"""Ctrl-C ends every call within a second and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import softindex
from softindex.kernels import DrawResults, Engine, Law, Request
from softindex.records import Stored
from softindex.store import load, save

WATCHDOG = 100
"""Seconds for a script that needs about ten, and several times as long as this if its calls ran to their ends."""

SCRIPT = '''
import contextlib, os, signal, sys, threading
import numpy as np
import softindex

# A process that was started in the background ignores Ctrl-C, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

random = np.random.default_rng(0)
def normal(*shape): return random.standard_normal(shape, dtype=np.float32)

def interrupt(name, call):
    """Run a call that would take half a minute or more, and end it after 0.3 s."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with contextlib.suppress(KeyboardInterrupt):
        call()
        sys.exit(f"{name} ended by itself or swallowed the signal")
    timer.join()
    assert threading.active_count() == 1, name
'''


def run(lines):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + lines],
        check=False,
        timeout=WATCHDOG,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        cwd=Path(__file__).parent / "mol",
    )
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_every_call_of_an_index():
    run("""
index = softindex.build(normal(20_000, 64), clusters=100, codes=True, threads=1)
queries, one = normal(400_000, 64), normal(64)
before = index.sample(queries[:5], temperature=1.0, seed=1)
for threads in (1, 2):
    options = {"temperature": 1.0, "threads": threads}
    interrupt("exact", lambda: index.sample(queries, 100, method="exact", **options))
    interrupt("certified", lambda: index.sample(queries, 100, method="certified", **options))
    interrupt("top_p", lambda: index.sample(queries, 100, top_p=0.9, **options))
    interrupt("log_partition", lambda: index.log_partition(queries, method="exact", **options))
    interrupt("top_k", lambda: index.top_k(queries, 100, threads=threads))
    assert len(os.listdir("/proc/self/task")) == 1
# A signal must not wait for the end of one query.
interrupt("many draws", lambda: index.sample(one, 60_000_000, temperature=1.0, method="exact", threads=1))
after = index.sample(queries[:5], temperature=1.0, seed=1)
assert (before.ids == after.ids).all() and (before.log_prob == after.log_prob).all()
""")


def test_ctrl_c_ends_a_build_and_an_audit():
    run("""
interrupt("build", lambda: softindex.build(normal(200_000, 64), clusters=4000, threads=2))
interrupt("tree", lambda: softindex.build(normal(200_000, 64), tree=True, threads=1))
interrupt("layer", lambda: softindex.AdaptiveSoftmax(normal(40_000, 2048)))
index = softindex.build(normal(20_000, 64), clusters=100, threads=1)
interrupt("audit", lambda: index.audit(normal(20_000, 64), threads=2))
""")


def test_ctrl_c_ends_the_calls_of_the_other_products():
    run("""
from made_similarities import queries_of, similarity
from softindex.mol import build
layer = softindex.AdaptiveSoftmax(normal(20_000, 512))
queries = normal(20_000, 512)
for guarantee in ("exact", "deterministic", "pac"):
    interrupt(guarantee, lambda: layer.top_k(queries, 3, temperature=1.0, guarantee=guarantee))
interrupt("layer.sample", lambda: layer.sample(queries, 10, temperature=1.0))
model = similarity("mixture", 20_000, d=32)
index = build(model, np.arange(20_000))
many = np.repeat(queries_of(model), 5000, axis=0)
for method in ("exact", "brute-force", "two-pass", "per-embedding", "clusters"):
    interrupt(method, lambda: index.top_k(many, 10, method=method, threads=2))
interrupt("mol sample", lambda: index.sample(many, 10, temperature=1.0, threads=2))
""")


class AlarmError(Exception):
    pass


@pytest.fixture
def alarm():
    """Raise AlarmError in this thread, from a signal handler, after so many seconds."""

    def stop(number, frame):
        raise AlarmError

    before = signal.signal(signal.SIGALRM, stop)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("threads", [1, 3])
def test_native_code_stops_where_it_is_and_raises_what_the_handler_raised(alarm, threads):
    """Rows that were not reached keep what was in them: the call did not run to its end before it raised."""
    random = np.random.default_rng(0)
    index = softindex.build(random.standard_normal((20_000, 32), dtype=np.float32), clusters=100, threads=1)
    queries = random.standard_normal((200_000, 32), dtype=np.float32)
    b, engine = len(queries), Engine(index._contents.arrays)
    results = np.full((b, 1), -7, np.int64), np.empty((b, 1)), np.full(b, -7, np.int64), np.empty((4, b))
    alarm(0.3)
    with pytest.raises(AlarmError):
        engine.sample(Request(queries, Law("exhaustive", size=True), 1.0, threads=threads), DrawResults(*results))
    assert (results[2] == -7).sum() > b // 2


def test_a_handler_that_returns_does_not_end_the_call():
    calls = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: calls.append(time.monotonic()))
    try:
        random = np.random.default_rng(0)
        index = softindex.build(random.standard_normal((5000, 32), dtype=np.float32), threads=1)
        queries = random.standard_normal((4000, 32), dtype=np.float32)
        expected = index.sample(queries, temperature=1.0, seed=1, method="exact")
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        drawn = index.sample(queries, temperature=1.0, seed=1, method="exact")
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert calls
    assert (drawn.ids == expected.ids).all()


def interrupt_at(step, call):
    """Send SIGINT before the given line of the store's code; returns False where there are fewer lines."""
    left = step

    def trace(frame, event, argument):
        nonlocal left
        if "/softindex/store/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before, handler = sys.gettrace(), signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)
    return False


def test_ctrl_c_anywhere_in_a_save_leaves_the_old_or_the_new_and_nothing_else(tmp_path):
    old, new = (Stored("index", {}, {"numbers": np.full(5, value)}, 1) for value in (1, 2))
    target, found = tmp_path / "saved", set()
    save(target, old)
    open_files = len(os.listdir("/proc/self/fd"))
    for step in range(1, 2000, 5):
        interrupted = interrupt_at(step, lambda: save(target, new))
        assert os.listdir(tmp_path) == ["saved"], step
        assert len(os.listdir("/proc/self/fd")) == open_files, step
        found.add(int(load(target).arrays["numbers"][0]))
        if not interrupted:
            break
        save(target, old)
    assert 100 < step < 1990
    assert found == {1, 2}


def test_threads_that_are_inside_when_python_ends_do_not_abort_the_process():
    """Five times, because the end may come while all of them wait for the GIL outside of native code."""
    script = """
import threading, time
import numpy as np, softindex
random = np.random.default_rng(0)
index = softindex.build(random.standard_normal((2000, 32), dtype=np.float32), threads=1)
queries = random.standard_normal((500, 32), dtype=np.float32)
def draw():
    while True: index.sample(queries, temperature=1.0, threads=1)
for _ in range(4): threading.Thread(target=draw, daemon=True).start()
time.sleep(0.2)
"""
    for _ in range(5):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=WATCHDOG)
