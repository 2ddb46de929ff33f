"""The synthetic sets follow their distributions, and paths open as data sets."""

import os

import numpy as np
import pytest
from scipy import stats

from softindex.errors import InputError
from softindex.evaluate import datasets
from softindex.evaluate.datasets import fill_synth, open_dataset, synth_balanced, synth_unbalanced

pytestmark = pytest.mark.filterwarnings("ignore:.*softindex keeps float32:UserWarning")
"""tests/test_vectors.py has what is noted."""


def plan(rows, dimensions, groups, balanced, seed=0):
    return datasets._plan(np.random.default_rng(seed), rows, dimensions, groups, balanced=balanced)


class TestSynthetic:
    @pytest.mark.parametrize(("rows", "groups"), [(1000, 10), (1003, 10), (7, 10)])
    def test_balanced_sizes_differ_by_at_most_one(self, rows, groups):
        sizes = np.bincount(plan(rows, 3, groups, balanced=True)[1], minlength=groups)
        assert sizes.sum() == rows
        assert np.ptp(sizes) <= 1

    def test_the_logarithms_of_unbalanced_sizes_are_normal_with_deviation_0_8(self):
        # Fixed seed; another one would fail once in a thousand.
        sizes = np.bincount(plan(1_000_000, 2, 500, balanced=False)[1], minlength=500)
        assert sizes.sum() == 1_000_000
        logs = np.log(sizes)
        assert stats.kstest((logs - logs.mean()) / 0.8, "norm").pvalue > 1e-3

    def test_unbalanced_sizes_are_multinomial_not_just_the_weights_rounded(self):
        # The same seed gives both the same weights, so only chance is left between them; rounding would leave none.
        sizes = np.bincount(plan(100_000, 2, 400, balanced=False)[1], minlength=400)
        more = np.bincount(plan(200_000, 2, 400, balanced=False)[1], minlength=400)
        assert 1e-3 < stats.chi2_contingency([sizes, more]).pvalue < 1 - 1e-3

    def test_means_are_uniform_on_the_unit_sphere(self):
        means, _ = plan(1, 5, 40_000, balanced=True)
        np.testing.assert_allclose(np.linalg.norm(means, axis=1), 1, atol=1e-6)
        # Deviations of these means are below 0.0024: five of them are allowed.
        np.testing.assert_allclose(means.mean(axis=0), 0, atol=0.012)
        np.testing.assert_allclose(means.T @ means / len(means), np.eye(5) / 5, atol=0.012)

    @pytest.mark.parametrize("balanced", [True, False])
    def test_around_the_means_there_is_normal_noise_of_a_tenth(self, balanced):
        make = synth_balanced if balanced else synth_unbalanced
        vectors = make(40_000, d=20, groups=50, seed=4).vectors
        means, group = plan(40_000, 20, 50, balanced=balanced, seed=4)
        noise = (vectors - means[group]) / 0.1
        assert vectors.dtype == np.float32
        assert stats.kstest(noise[::4].ravel(), "norm").pvalue > 1e-3
        np.testing.assert_allclose(np.cov(noise.T), np.eye(20), atol=0.04)

    def test_neighbouring_rows_are_of_different_groups(self):
        _, group = plan(100_000, 2, 100, balanced=False)
        chance = (np.bincount(group) / len(group)) @ (np.bincount(group) / len(group))
        assert np.mean(group[1:] == group[:-1]) == pytest.approx(chance, abs=0.003)

    @pytest.mark.parametrize("make", [synth_balanced, synth_unbalanced])
    def test_a_seed_settles_the_vectors(self, make):
        first = make(3000, d=8, groups=16, seed=1).vectors
        np.testing.assert_array_equal(first, make(3000, d=8, groups=16, seed=1).vectors)
        assert not (first == make(3000, d=8, groups=16, seed=2).vectors).any()

    @pytest.mark.parametrize("balanced", [True, False])
    def test_the_vectors_are_those_that_were_always_measured(self, balanced):
        """As one writes it down: drawn whole, in the order that the published measurements used."""
        rng = np.random.default_rng(3)
        means = rng.standard_normal((70, 11), dtype=np.float32)
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        weights = np.exp(0.8 * rng.standard_normal(70))
        group = np.repeat(np.arange(70), rng.multinomial(250_000, weights / weights.sum()))
        if balanced:
            group = np.arange(250_000) % 70
        rng.shuffle(group)
        whole = rng.standard_normal((250_000, 11), dtype=np.float32)
        whole *= 0.1
        whole += means[group]
        make = synth_balanced if balanced else synth_unbalanced
        np.testing.assert_array_equal(make(250_000, d=11, groups=70, seed=3).vectors, whole)

    @pytest.mark.parametrize("block_values", [1, 64, 1000, 1 << 30])
    def test_blocks_of_any_size_in_any_array_make_the_same_vectors(self, block_values, tmp_path, monkeypatch):
        whole = synth_unbalanced(1234, d=6, groups=9, seed=5).vectors
        monkeypatch.setattr(datasets, "BLOCK_VALUES", block_values)
        mapped = np.lib.format.open_memmap(tmp_path / "v.npy", mode="w+", dtype=np.float32, shape=(1234, 6))
        strided = np.zeros((6, 2468), np.float32).T[::2]
        for out in (mapped, strided):
            fill_synth(out, balanced=False, groups=9, seed=5)
            np.testing.assert_array_equal(out, whole)

    def test_what_cannot_be_made_is_refused(self):
        for wrong in (0, -1, 2.5):
            with pytest.raises(InputError, match="n is"):
                synth_balanced(wrong)
            with pytest.raises(InputError, match="groups"):
                synth_unbalanced(10, groups=wrong)
        with pytest.raises(InputError, match="two axes"):
            fill_synth(np.zeros(5, np.float32), balanced=True)
        with pytest.raises(InputError, match="expected floats"):
            fill_synth(np.zeros((5, 2), int), balanced=True)


WORDS = ["the", "naïve", "日本", "of\u2028all"]
ROWS = np.random.default_rng(6).standard_normal((4, 102))


class TestOpen:
    def test_names_open_the_named_sets(self, monkeypatch):
        for name in ("synth-balanced", "synth-unbalanced"):
            make = datasets.NAMES[name]
            monkeypatch.setitem(datasets.NAMES, name, lambda make=make: make(50, d=3, groups=4))
            opened = open_dataset(name)
            assert opened.name == name
            np.testing.assert_array_equal(opened.vectors, make(50, d=3, groups=4).vectors)
            assert opened.source.count("\n") == 0

    def test_an_unknown_name_is_answered_with_the_known_ones(self):
        with pytest.raises(InputError, match=r"'gloves'; expected synth-balanced, synth-unbalanced, or the path"):
            open_dataset("gloves")
        with pytest.raises(InputError, match="neither a name nor a path"):
            open_dataset(None)
        with pytest.raises(InputError, match="there is no file at"):
            open_dataset("gloves.npy")

    def test_a_file_stays_on_disk_where_it_can(self, tmp_path):
        vectors = ROWS.astype(np.float32)
        np.save(tmp_path / "v.npy", vectors)
        opened = open_dataset(tmp_path / "v.npy")
        assert isinstance(opened.vectors, np.memmap)
        np.testing.assert_array_equal(opened.vectors, vectors)
        assert opened.name == "v.npy"
        assert opened.ids is None
        assert opened.queries is None

    def test_half_precision_becomes_single(self, tmp_path):
        np.save(tmp_path / "v.npy", ROWS.astype(np.float16))
        opened = open_dataset(str(tmp_path / "v.npy"))
        assert opened.vectors.dtype == np.float32
        np.testing.assert_array_equal(opened.vectors, ROWS.astype(np.float16))

    def test_bytes_are_vectors_too(self, tmp_path):
        values = np.random.default_rng(7).integers(0, 256, (20, 6), np.uint8)
        (tmp_path / "v.bvecs").write_bytes(b"".join(b"\x06\0\0\0" + row.tobytes() for row in values))
        opened = open_dataset(tmp_path / "v.bvecs")
        assert opened.vectors.dtype == np.float32
        np.testing.assert_array_equal(opened.vectors, values)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_an_ann_benchmarks_file_brings_its_queries(self, dtype, tmp_path):
        h5py = pytest.importorskip("h5py")
        items, queries = ROWS.astype(dtype), ROWS[:2].astype(dtype)
        with h5py.File(tmp_path / "v.hdf5", "w") as file:
            file["train"], file["test"] = items, queries
            file["neighbors"], file["distances"] = np.zeros((2, 3), int), ROWS[:2, :3]
        opened = open_dataset(tmp_path / "v.hdf5")
        assert opened.vectors.dtype == opened.queries.dtype == np.float32
        np.testing.assert_array_equal(opened.vectors, items.astype(np.float32))
        np.testing.assert_array_equal(opened.queries, queries.astype(np.float32))

    def test_a_column_of_a_table_is_picked_by_its_name(self, tmp_path):
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = {"id": WORDS, "first": ROWS.tolist(), "second": (-ROWS).tolist()}
        parquet.write_table(pyarrow.table(columns), tmp_path / "v.parquet")
        opened = open_dataset(f"{tmp_path / 'v.parquet'}::second")
        np.testing.assert_array_equal(opened.vectors, -ROWS.astype(np.float32))
        assert opened.ids.tolist() == WORDS

    def test_a_file_named_as_a_set_is_reached_by_its_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "synth-balanced").write_bytes(b"")
        with pytest.raises(InputError, match="no format that softindex reads"):
            open_dataset(os.path.join(".", "synth-balanced"))
