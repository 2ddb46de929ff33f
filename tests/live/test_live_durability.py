"""What is durable when, who may write, and what readers see while a catalogue changes."""

import gc
import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import softindex
from softindex.live import LiveIndex, folding, log
from softindex.live.log import DATABASE, Log
from tests.live.catalogues import QUERY, TEMPERATURE, D, in_child, vectors


def exact(snapshot, ids):
    return snapshot.log_prob(QUERY, ids, temperature=TEMPERATURE, method="exact")


def test_what_is_acknowledged_survives_kill_9():
    """Twelve kills; `make crash` makes a thousand."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.live.crashing", "--rounds", "12", "--seed", "1"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "survived 12 kills" in done.stdout


def test_a_second_writer_is_refused_and_touches_nothing(live, path):
    before = {name: os.stat(path / name).st_mtime_ns for name in os.listdir(path) if name.startswith(DATABASE)}

    def work():
        with pytest.raises(softindex.SaveError, match=f"process {os.getppid()}.*one writer"):
            softindex.open(path)

    assert in_child(work)
    with pytest.raises(softindex.SaveError, match="one writer"):
        softindex.open(path)
    assert before == {name: os.stat(path / name).st_mtime_ns for name in before}
    live.upsert(1, QUERY)


def test_a_reader_never_writes_the_database(live, path):
    """SQLite before 3.51.3 may damage a database that two connections write or checkpoint: only one ever does."""
    reader = Log.open(str(path), write=False)
    for statement in ("DELETE FROM operations", "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA user_version = 9"):
        live.upsert(1, QUERY)
        before = (path / DATABASE).read_bytes()
        with suppress(sqlite3.OperationalError):
            reader._connection.execute(statement).fetchall()
        assert (path / DATABASE).read_bytes() == before
    reader.close()
    with softindex.open(path, read_only=True) as reader:
        assert len(reader) == 300


def test_readers_see_the_last_committed_state_and_follow_it(live, path):
    reader = softindex.open(path, read_only=True)
    assert not reader.refresh()
    number = live.upsert([1000], [QUERY])
    assert len(reader) == 300
    assert reader.refresh()
    assert reader.number == number
    np.testing.assert_array_equal(reader.snapshot().vectors(1000), QUERY)
    live.compact()
    live.remove([1000])
    assert reader.refresh()
    assert reader.number == live.number
    with pytest.raises(softindex.UnknownIdError):
        reader.snapshot().vectors(1000)
    reader.close()


def test_a_reader_that_never_refreshes_keeps_its_items(live, path):
    reader = softindex.open(path, read_only=True)
    snapshot, ids = reader.snapshot(), np.arange(300)
    before = exact(snapshot, ids)
    for round_ in range(3):
        live.upsert(ids, vectors(300, seed=round_ + 1))
        live.compact()
    np.testing.assert_array_equal(exact(snapshot, ids), before)
    np.testing.assert_array_equal(exact(reader.snapshot(), ids), before)
    assert abs(exact(live.snapshot(), ids) - before).max() > 0.1
    reader.close()


def mapped_but_deleted(path):
    with open("/proc/self/maps") as maps:
        return [line for line in maps if str(path) in line and "(deleted)" in line]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_disk_space_is_free_once_the_last_reader_of_an_old_snapshot_is_gone(live, path):
    old = live.snapshot()
    live.upsert(np.arange(300), vectors(300, seed=1))
    live.compact()
    folders = {name for name in os.listdir(path) if name.startswith(("segment", "generation"))}
    assert len(folders) == 2
    assert mapped_but_deleted(path)
    del old
    gc.collect()
    assert not mapped_but_deleted(path)


def test_the_log_gives_its_space_back_once_it_is_folded(live, path):
    live.upsert(np.arange(50_000), vectors(50_000))
    assert os.stat(path / (DATABASE + "-wal")).st_size + os.stat(path / DATABASE).st_size > 1_500_000
    live.compact()
    assert os.stat(path / (DATABASE + "-wal")).st_size == log.RESERVED_BYTES
    assert os.stat(path / DATABASE).st_size < 50_000


def test_a_full_disk_changes_nothing_and_the_next_change_works(path):
    def work():
        with softindex.open(path, create=vectors(300), compaction="manual") as live:
            largest = max(os.stat(path / name).st_size for name in (DATABASE, DATABASE + "-wal"))
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
            before, number = exact(live.snapshot(), np.arange(300)), live.number
            with pytest.raises(softindex.SaveError, match="Nothing was changed"):
                live.upsert(np.arange(60_000), vectors(60_000, seed=1))
            assert live.number == number
            np.testing.assert_array_equal(exact(live.snapshot(), np.arange(300)), before)
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            live.upsert(np.arange(5000), vectors(5000, seed=1))
            assert len(live) == 5000

    assert in_child(work)
    with softindex.open(path) as live:
        assert len(live) == 5000


def test_a_failed_compaction_is_visible_and_tried_again(path):
    def work():
        with softindex.open(path, create=vectors(3000), compaction="manual") as live:
            live.upsert(np.arange(2000), vectors(2000, seed=1))
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
            with pytest.raises(softindex.SaveError):
                live.compact()
            state = live.status().compaction
            assert state.failures == 1
            assert "SaveError" in state.error
            assert live.status().delta_rows == 2000
            assert len(live.snapshot()) == 3000
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            live.compact()
            state = live.status().compaction
            assert (state.failures, state.error, state.completed) == (0, None, 1)
            assert live.status().delta_rows == 0

    assert in_child(work)


def test_compaction_runs_by_itself_when_many_items_came(path, monkeypatch):
    monkeypatch.setattr(folding, "MOST_ROWS", 50)
    with softindex.open(path, create=vectors(300)) as live:
        for start in range(0, 600, 60):
            live.upsert(np.arange(1000 + start, 1060 + start), vectors(60, seed=start))
        # A busy machine may run nothing but the upserts for a while.
        end = time.monotonic() + 60
        while live.status().compaction.completed == 0 and time.monotonic() < end:
            time.sleep(0.005)
        live._compactor.stop()
        assert live.status().compaction.completed >= 1
        assert live.status().compaction.error is None
        assert len(live) == 900
        assert abs(np.exp(exact(live.snapshot(), live.snapshot().ids)).sum() - 1) < 1e-5
    with softindex.open(path, read_only=True) as reader:
        assert len(reader) == 900


def test_a_failure_in_the_background_is_tried_again(path, monkeypatch):
    from softindex.live import catalogue, compactor

    monkeypatch.setattr(folding, "MOST_ROWS", 50)
    monkeypatch.setattr(compactor, "FIRST_WAIT", 0.01)
    failures = iter([OSError(28, "No space left on device")])
    fold = catalogue.fold

    def failing(*arguments):
        for error in failures:
            raise error
        return fold(*arguments)

    monkeypatch.setattr(catalogue, "fold", failing)
    with softindex.open(path, create=vectors(300)) as live:
        live.upsert(np.arange(1000, 1100), vectors(100))
        for _ in range(2000):
            if live.status().compaction.completed:
                break
            live._compactor._thread.join(0.01)
        assert live.status().compaction.completed == 1
        assert live.status().delta_rows == 0


def test_draws_and_changes_go_on_while_a_compaction_runs(live, path, monkeypatch):
    from softindex.live import catalogue

    begun, go_on, fold = threading.Event(), threading.Event(), catalogue.fold

    def waiting(*arguments):
        begun.set()
        assert go_on.wait(30)
        return fold(*arguments)

    monkeypatch.setattr(catalogue, "fold", waiting)
    live.upsert(np.arange(200, 400), vectors(200, seed=1))
    worker = threading.Thread(target=live.compact)
    worker.start()
    assert begun.wait(30)
    assert live.status().compaction.running
    live.upsert([7, 1000], np.stack([QUERY, -QUERY]))
    live.remove([250])
    with softindex.open(path, read_only=True) as reader:
        for one in (live, reader):
            snapshot = one.snapshot()
            assert len(snapshot.sample(QUERY, 5, temperature=1.0).ids) == 5
            assert len(snapshot) == 400
    go_on.set()
    worker.join()
    assert live.status().compaction.completed == 1
    assert live.status().delta_rows == 2
    np.testing.assert_array_equal(live.snapshot().vectors([7, 1000]), [QUERY, -QUERY])
    assert 250 not in live.snapshot().ids


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user of a child process")
def test_a_read_only_disk_can_be_read_and_not_written(path):
    softindex.open(path, create=vectors(300)).close()
    for folder, _, files in os.walk(path):
        os.chmod(folder, 0o555)
        for name in files:
            os.chmod(os.path.join(folder, name), 0o444)
    for folder in path.parents:
        if str(folder).startswith(("/tmp/", "/var/tmp/")):
            os.chmod(folder, 0o755)

    def work():
        os.setuid(65534)
        with softindex.open(path, read_only=True) as reader:
            assert len(reader.snapshot().sample(QUERY, 5, temperature=1.0).ids) == 5
            assert not reader.refresh()
        with pytest.raises(softindex.SaveError, match="read_only=True"):
            softindex.open(path)

    assert in_child(work)


def test_closing_leaves_one_database_file_and_a_lock_anybody_can_take(live, path):
    live.upsert(1, QUERY)
    live.close()
    live.close()
    assert not (path / (DATABASE + "-wal")).exists()
    with softindex.open(path) as again:
        np.testing.assert_array_equal(again.snapshot().vectors(1), QUERY)
    with pytest.raises(softindex.InputError, match="closed"):
        live.upsert(1, QUERY)


def test_a_catalogue_opened_before_a_fork_is_refused_after_it_but_snapshots_are_not(live):
    """While another thread changes it: the child finds no lock taken."""
    live.upsert(np.arange(250, 350), vectors(100, seed=1))
    snapshot, ids, ended = live.snapshot(), np.arange(350), threading.Event()
    before = exact(snapshot, ids)

    def change():
        while not ended.is_set():
            live.upsert(np.arange(100), vectors(100, seed=2))
            live.snapshot().vectors([1, 300])

    def work():
        for call in (lambda: live.upsert(1, QUERY), live.snapshot, live.status, live.refresh):
            with pytest.raises(softindex.InputError, match="fork"):
                call()
        np.testing.assert_array_equal(exact(snapshot, ids), before)

    worker = threading.Thread(target=change)
    worker.start()
    try:
        for _ in range(5):
            assert in_child(work)
    finally:
        ended.set()
        worker.join()
    assert isinstance(live, LiveIndex)


def test_a_state_draws_the_same_in_every_process(path, monkeypatch):
    """The writer, a reader that follows it, and one that opens later; the batches are logged in pieces."""
    monkeypatch.setattr(log, "PIECE_BYTES", 10 * 4 * D)
    random, ids = np.random.default_rng(4), np.arange(2000)
    options = {"dispersion": 2, "log_bias": random.standard_normal(2000)}
    with softindex.open(path, create=vectors(2000), compaction="manual", **options) as live:
        follower = softindex.open(path, read_only=True)
        for seed in range(6):
            bias = random.standard_normal(500)
            live.upsert(random.choice(ids, 500, replace=False), vectors(500, seed=seed), log_bias=bias)
            live.remove(random.choice(ids, 100, replace=False), unknown="ignore")
            if seed == 2:
                live.compact()
            follower.refresh()
            follower.snapshot()
        with softindex.open(path, read_only=True) as late:
            seen = [one.snapshot() for one in (live, follower, late)]
            sums = [one._changes.remaining.sums() for one in (live, follower, late)]
        follower.close()
    first, drawn = seen[0], [one.sample(QUERY, 200, temperature=TEMPERATURE, seed=1) for one in seen]
    for one, draws, added_up in zip(seen, drawn, sums, strict=True):
        np.testing.assert_array_equal(added_up, sums[0])
        assert one.snapshot == first.snapshot
        for name, array in first._contents.arrays.items():
            np.testing.assert_array_equal(one._contents.arrays[name], array, err_msg=name)
        np.testing.assert_array_equal(draws.ids, drawn[0].ids)
        np.testing.assert_array_equal(draws.log_prob, drawn[0].log_prob)
