"""Shards on a Ray cluster of three nodes, and what is refused without one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import softindex
from softindex.ray.building import _cut
from softindex.ray.manifest import Manifest, Shard, read_manifest, save_manifest

STORY = Path(__file__).parent / "story.py"


def test_shards_are_built_drawn_from_lost_and_found_on_a_cluster_of_three_nodes():
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, STORY], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "the story ends well" in done.stdout


@pytest.mark.parametrize("shards", [None, 1, 2, 3, 7, 10])
def test_shards_hold_every_row_once_whatever_the_files(shards):
    lengths = [3, 1, 4, 2]
    parts = _cut(["a", "b", "c", "d"], lengths, shards)
    assert len(parts) == (4 if shards is None else shards)
    rows = [first + row for part in parts for _, low, high, first in part for row in range(low, high)]
    assert rows == list(range(10))
    sizes = [sum(high - low for _, low, high, _ in part) for part in parts]
    assert shards is None or max(sizes) - min(sizes) <= 1


def test_a_manifest_is_what_was_saved_or_refused(tmp_path):
    made = Manifest("build-1", (Shard("build-1/shard-00000", 5, "abc", {"dim": 3, "clusters": 2}),))
    save_manifest(tmp_path, made)
    assert read_manifest(tmp_path) == made
    (tmp_path / "shards.json").write_text((tmp_path / "shards.json").read_text().replace("build-1/", "../"))
    with pytest.raises(softindex.CorruptIndexError, match="elsewhere"):
        read_manifest(tmp_path)
    (tmp_path / "shards.json").write_text("{")
    with pytest.raises(softindex.CorruptIndexError, match="damaged"):
        read_manifest(tmp_path)
    with pytest.raises(softindex.NotAnIndexError, match="holds no shards"):
        read_manifest(tmp_path / "nothing")


def test_without_a_cluster_the_error_says_how_to_connect(tmp_path):
    pytest.importorskip("ray")
    np.save(tmp_path / "a.npy", np.zeros((3, 2), np.float32))
    with pytest.raises(softindex.InputError, match=r"ray\.init"):
        softindex.ray.build([tmp_path / "a.npy"], tmp_path / "shards")


def test_without_ray_the_error_has_the_pip_line():
    code = (
        "import sys; sys.modules['ray'] = None; import softindex\n"
        "try: softindex.ray.open('x')\n"
        "except softindex.MissingDependencyError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install ".[ray]"' in done.stdout


def test_importing_softindex_does_not_import_ray():
    code = "import sys, softindex; assert 'ray' not in sys.modules; softindex.ray; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
