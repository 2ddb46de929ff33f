"""The commands of a catalogue, run as a user runs them."""

import json
import subprocess
import sys

import numpy as np
import pytest

import softindex


def run(*arguments):
    command = [sys.executable, "-c", "from softindex.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def catalogue(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    done = run("live", "create", tmp_path / "catalogue", tmp_path / "vectors.npy")
    assert done.returncode == 0, done.stderr
    assert "100 items of 4 dimensions" in done.stdout
    return tmp_path / "catalogue"


def test_items_are_changed_and_drawn(catalogue, tmp_path):
    np.save(tmp_path / "more.npy", np.eye(4, dtype=np.float32))
    (tmp_path / "ids.txt").write_text("7\n200\n201\n202\n")
    assert (
        "103 in all, state 1"
        in run("live", "upsert", catalogue, tmp_path / "more.npy", "--ids", tmp_path / "ids.txt").stdout
    )
    assert "2 items removed, 101 left, state 2" in run("live", "remove", catalogue, "3,4").stdout
    drawn = json.loads(run("sample", catalogue, "--item", 7, "-n", 20, "-t", 1, "--exclude", "3,9", "--json").stdout)
    assert drawn["snapshot"] == 2
    assert not {3, 4, 9} & set(drawn["ids"])
    state = json.loads(run("live", "status", catalogue, "--json").stdout)
    assert (state["items"], state["delta_rows"], state["snapshot"]) == (101, 4, 2)
    assert "101 items" in run("live", "compact", catalogue).stdout
    best = json.loads(run("top-k", catalogue, "--item", 200, "--item", 201, "-k", 1, "--json").stdout.splitlines()[0])
    assert best["proven"] == [True]


def test_wrong_use_is_one_sentence(catalogue, tmp_path):
    for arguments, code, word in (
        (("live", "create", tmp_path / "new"), 3, "--dim"),
        (("live", "create", catalogue, "--dim", 4), 3, "a catalogue already"),
        (("live", "remove", catalogue, "5000"), 3, "5000"),
        (("live", "remove", catalogue, "five"), 3, "five"),
        (("live", "upsert", catalogue, tmp_path / "vectors.npy"), 3, "--ids"),
        (("live", "status", tmp_path), 4, "not a live catalogue"),
        (("sample", catalogue, "-t", 1), 3, "--item"),
        (("top-k", catalogue, "--item", "x"), 3, "integer ids"),
    ):
        done = run(*arguments)
        assert done.returncode == code, done.stderr
        assert word in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_saved_index_becomes_a_catalogue(catalogue, tmp_path):
    softindex.build(np.eye(3, dtype=np.float32), ids=["a", "b", "c"]).save(tmp_path / "index")
    assert "3 items" in run("live", "create", tmp_path / "named", tmp_path / "index").stdout
    best = json.loads(run("top-k", tmp_path / "named", "--item", "b", "-k", 1, "--json").stdout)
    assert best["ids"] == ["b"]
