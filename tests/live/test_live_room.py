"""The room that SQLite's log has in advance, and changes whose effect on the moments waits until it is needed."""

import os
import resource
import shutil

import numpy as np
import pytest

import softindex
from softindex import remaining
from softindex.live import folding, log
from softindex.live.generation import Generation
from softindex.live.log import DATABASE
from tests.live.catalogues import QUERY, in_child, vectors


def made_from(contents):
    """Arrays, segments, ids and guards of a generation with the clusters of an index."""
    made, rows = folding.from_index(contents, contents.parameters)
    return made.arrays, (rows,), made.ids, {}


def test_single_changes_go_where_the_log_has_room_already(path, monkeypatch):
    """Several times as many as fit: it is written from its start again."""
    monkeypatch.setattr(log, "CHECKPOINT_PAGES", 32)
    monkeypatch.setattr(log, "RESERVED_BYTES", 64 * 4120)
    with softindex.open(path, create=vectors(300), compaction="manual") as live:
        for number in range(200):
            live.upsert(number, QUERY)
        assert os.stat(path / (DATABASE + "-wal")).st_size == log.RESERVED_BYTES


def test_the_room_of_the_log_holds_no_changes(live, path, tmp_path):
    """What a power failure leaves at any moment opens with exactly what was acknowledged."""
    for number in range(3):
        live.upsert(1000 + number, QUERY)
        left = shutil.copytree(path, tmp_path / f"left-{number}", ignore=shutil.ignore_patterns("*-shm"))
        with softindex.open(left) as again:
            assert again.number == live.number
            assert len(again) == 301 + number
            again.upsert(2000, QUERY)
        assert len(softindex.open(left, read_only=True)) == 302 + number


def test_a_disk_without_room_for_the_log_in_advance_takes_changes_all_the_same(path):
    softindex.open(path, create=vectors(300), compaction="manual").close()

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.RESERVED_BYTES // 2, resource.RLIM_INFINITY))
        with softindex.open(path, compaction="manual") as live:
            assert os.stat(path / (DATABASE + "-wal")).st_size == 0
            live.upsert(1000, QUERY)

    assert in_child(work)
    with softindex.open(path, read_only=True) as reader:
        assert len(reader) == 301


@pytest.mark.parametrize("dispersion", ["none", 2])
def test_moments_do_not_depend_on_when_they_are_asked_for(monkeypatch, dispersion):
    monkeypatch.setattr(remaining, "BLOCK_ITEMS", 50)
    monkeypatch.setattr(remaining, "MOST_WAITING", 5)
    random = np.random.default_rng(7)
    index = softindex.build(vectors(900), log_bias=random.standard_normal(900), dispersion=dispersion, clusters=9)
    clusters = Generation("", index.parameters, *made_from(index._contents))
    removals = np.split(random.permutation(900)[:600], np.sort(random.choice(600, 60, replace=False)))
    often, once = remaining.Remaining(clusters), remaining.Remaining(clusters)
    gone = np.zeros(900, bool)
    for positions in filter(len, removals):
        gone[positions] = True
        for one in (often, once):
            one.remove(np.sort(positions))
        often.update(gone)
    once.update(gone)
    np.testing.assert_array_equal(often.lost, np.add.reduceat(gone, clusters.arrays["offsets"][:-1], dtype=np.int64))
    np.testing.assert_array_equal(often.sums(), once.sums())
    for name, array in once.arrays.items():
        np.testing.assert_array_equal(array, often.arrays[name], err_msg=name)
