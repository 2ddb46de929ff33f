"""Shards on a Ray cluster of three nodes, and what is refused without one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import softindex
from softindex.ray.building import _build_one, _cut, _train
from softindex.ray.manifest import Manifest, Shard, check_shards, name_version, read_manifest, save_manifest
from softindex.ray.reading import draw_sample, read_pieces
from softindex.testing.statistics import chi_square_score

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


def save_parts(folder, biases):
    """Three Parquet files with ids, vectors and biases, and all of their rows."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng, files = np.random.default_rng(3), []
    vectors, columns = (
        rng.standard_normal((900, 6)).astype(np.float32),
        {name: rng.standard_normal(900) for name in biases},
    )
    for number, rows in enumerate(np.array_split(np.arange(900), 3)):
        lists = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors[rows].ravel()), 6)
        others = {f"the {name}": arrow.array(column[rows]) for name, column in columns.items()}
        files.append(str(folder / f"part-{number}.parquet"))
        parquet.write_table(arrow.table({"id": arrow.array(rows + 5), "vector": lists, **others}), files[-1])
    return files, vectors, columns


@pytest.mark.parametrize("biases", [(), ("bias",), ("bias", "log_bias")])
def test_shards_of_parts_with_biases_have_the_law_of_one_index(tmp_path, biases):
    """What the tasks do, without a cluster: cut, sample, train, build, and the exact softmax of all rows."""
    files, vectors, columns = save_parts(tmp_path, biases)
    names = {name: f"the {name}" for name in biases}
    samples = [draw_sample(file, 0.5, (0, number), names) for number, file in enumerate(files)]
    _train(str(tmp_path / "centroids.npy"), 12, 0, 1, files, *samples)
    for number, part in enumerate(_cut(files, [300, 300, 300], 2)):
        _build_one(str(tmp_path), f"shard-{number}", part, str(tmp_path / "centroids.npy"), names, {"threads": 1})
    shards = [softindex.load(tmp_path / f"shard-{number}") for number in range(2)]
    assert all(shard.parameters[name] == (name in biases) for shard in shards for name in ("bias", "log_bias"))
    query, t = np.random.default_rng(4).standard_normal(6).astype(np.float32), 0.7
    logits = (vectors.astype(float) @ query + columns.get("bias", 0.0)) / t + columns.get("log_bias", 0.0)
    law = logits - np.logaddexp.reduce(logits)
    index = softindex.sharded.join(shards)
    asked = {"temperature": t, "method": "exact"}
    np.testing.assert_allclose(index.log_prob(query, np.arange(5, 905), **asked), law, atol=1e-4)
    draws = index.sample(query, 20_000, seed=1, **asked)
    # False alarm about 3e-7.
    assert chi_square_score(np.bincount(draws.ids - 5, minlength=900), np.exp(law)) < 5


def test_parts_that_do_not_fit_are_refused_by_name(tmp_path):
    files, vectors, _ = save_parts(tmp_path, ("bias",))
    wide, bad = str(tmp_path / "wide.npy"), str(tmp_path / "bad.npy")
    np.save(wide, np.zeros((4, 7), np.float32))
    spoiled = vectors.copy()
    spoiled[70, 2] = np.nan
    np.save(bad, spoiled)
    with pytest.raises(softindex.InputError, match=r"wide\.npy has 7 dimensions"):
        read_pieces([(files[0], 0, 3, 0), (wide, 0, 4, 300)], {})
    with pytest.raises(softindex.InputError, match=r"part-1\.parquet has 6 dimensions but .*wide\.npy has 7"):
        _train("", 2, 0, 1, [wide, files[1]], np.zeros((4, 7), np.float32), np.zeros((4, 6), np.float32))
    for look in (lambda: draw_sample(bad, 1.0, (0, 0), {}), lambda: read_pieces([(bad, 0, 900, 0)], {})):
        with pytest.raises(softindex.InputError, match=r"row 70 of the vectors in .*bad\.npy has nan in column 2"):
            look()
    with pytest.raises(softindex.InputError, match="no column 'price' for bias; it has id, the bias, vector"):
        draw_sample(files[0], 1.0, (0, 0), {"bias": "price"})
    with pytest.raises(softindex.InputError, match="bias is a column of Parquet files"):
        draw_sample(wide, 1.0, (0, 0), {"bias": "price"})


def test_a_build_that_is_not_what_its_manifest_says_is_refused(tmp_path):
    index = softindex.build(np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32), threads=1)
    (tmp_path / "build-1").mkdir()
    index.save(tmp_path / "build-1" / "shard-00000")
    parameters = {**dict(index.parameters), "clusters": index.clusters}
    version = name_version(tmp_path / "build-1" / "shard-00000")

    def check(**changes):
        shard = {"folder": "build-1/shard-00000", "items": 50, "version": version, "parameters": parameters}
        check_shards(tmp_path, Manifest("build-1", (Shard(**{**shard, **changes}),)))

    check()
    with pytest.raises(softindex.CorruptIndexError, match=r"shard 0 of 1.*items 50 but shards\.json says 60"):
        check(items=60)
    with pytest.raises(softindex.CorruptIndexError, match=r"dim 4 but shards\.json says 5"):
        check(parameters={**parameters, "dim": 5})
    with pytest.raises(softindex.CorruptIndexError, match="was replaced"):
        check(version="0" * 16)
    with pytest.raises(softindex.CorruptIndexError, match="cannot be read"):
        check(folder="build-1/shard-00001")


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
