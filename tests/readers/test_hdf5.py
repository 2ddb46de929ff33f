""".hdf5 files."""

import numpy as np
import pytest
from vector_files import VECTORS, WORDS

from softindex.errors import InputError
from softindex.vectors import read

pytestmark = pytest.mark.filterwarnings("ignore:.*softindex keeps float32:UserWarning")
"""tests/test_vectors.py has what is noted."""


class TestHdf5:
    @pytest.fixture(autouse=True)
    def library(self):
        self.h5py = pytest.importorskip("h5py")

    def write(self, path, options=None, **datasets):
        with self.h5py.File(path, "w") as file:
            for name, data in datasets.items():
                file.create_dataset(name.replace("__", "/"), data=data, **(options or {}))
        return path

    @pytest.mark.parametrize("suffix", [".hdf5", ".h5"])
    def test_an_ann_benchmarks_file_gives_its_training_set(self, suffix, tmp_path):
        path = self.write(
            tmp_path / f"v{suffix}",
            train=VECTORS,
            test=VECTORS[:2],
            distances=VECTORS[:2],
            neighbors=np.zeros((2, 3), np.int32),
        )
        np.testing.assert_array_equal(read(path).vectors, VECTORS)
        np.testing.assert_array_equal(read(f"{path}::test").vectors, VECTORS[:2])

    def test_the_queries_of_an_ann_benchmarks_file_come_when_wanted(self, tmp_path):
        path = self.write(tmp_path / "v.hdf5", train=VECTORS, test=VECTORS[:2])
        assert read(path).queries is None
        np.testing.assert_array_equal(read(path, want_queries=True).queries, VECTORS[:2])
        np.testing.assert_array_equal(read(f"{path}::train", want_queries=True).queries, VECTORS[:2])
        assert read(f"{path}::test", want_queries=True).queries is None

    @pytest.mark.parametrize("test", [VECTORS[:2, :3], VECTORS[0], np.zeros((2, 4), int)])
    def test_a_test_array_that_cannot_be_queries_is_left_alone(self, test, tmp_path):
        path = self.write(tmp_path / "v.hdf5", train=VECTORS, test=test)
        source = read(path, want_queries=True)
        np.testing.assert_array_equal(source.vectors, VECTORS)
        assert source.queries is None

    @pytest.mark.parametrize(
        ("stored", "kept"), [("<f2", "f2"), (">f2", "f2"), (">f4", "f4"), ("<f8", "f4"), (">f8", "f4")]
    )
    def test_any_float_is_read_in_blocks(self, stored, kept, tmp_path):
        vectors = np.random.default_rng(4).integers(-99, 99, (40_000, 60))
        options = {"chunks": (777, 60), "compression": "gzip", "compression_opts": 1}
        read_back = read(self.write(tmp_path / "v.h5", options, x=vectors.astype(stored))).vectors
        assert read_back.dtype == np.dtype(kept)
        np.testing.assert_array_equal(read_back, vectors)

    @pytest.mark.parametrize("ids", [np.arange(6), WORDS, np.array([b"a", b"b", b"c", b"d", b"e", b"f"])])
    def test_ids_of_any_kind_are_read(self, ids, tmp_path):
        expected = [one.decode() if isinstance(one, bytes) else one for one in ids]
        assert read(self.write(tmp_path / "v.h5", x=VECTORS, ids=ids)).ids.tolist() == expected

    def test_a_dataset_in_a_group_can_be_named(self, tmp_path):
        path = self.write(tmp_path / "v.h5", group__a=VECTORS, group__b=VECTORS * 2)
        with pytest.raises(InputError, match=r"group/a \(6, 4\) float32"):
            read(path)
        for name in ("group/b", "/group/b"):
            np.testing.assert_array_equal(read(f"{path}::{name}").vectors, VECTORS * 2)

    def test_data_in_other_files_is_not_read(self, tmp_path):
        (tmp_path / "secret").write_bytes(VECTORS.tobytes())
        with self.h5py.File(tmp_path / "v.hdf5", "w") as file:
            outside = [(str(tmp_path / "secret"), 0, VECTORS.nbytes)]
            file.create_dataset("vectors", VECTORS.shape, np.float32, external=outside)
        with pytest.raises(InputError, match="stored in other files"):
            read(tmp_path / "v.hdf5")
        self.write(tmp_path / "other.hdf5", vectors=VECTORS)
        layout = self.h5py.VirtualLayout(VECTORS.shape, np.float32)
        layout[:] = self.h5py.VirtualSource(str(tmp_path / "other.hdf5"), "vectors", VECTORS.shape)
        with self.h5py.File(tmp_path / "w.hdf5", "w") as file:
            file.create_virtual_dataset("vectors", layout)
            file.create_dataset("own", data=VECTORS)
            file.create_virtual_dataset("ids", self.h5py.VirtualLayout((6,), np.int64))
        for name in ("vectors", "own"):
            with pytest.raises(InputError, match="stored in other files"):
                read(f"{tmp_path / 'w.hdf5'}::{name}")

    @pytest.mark.parametrize("options", [{}, {"chunks": (1024, 64)}, {"chunks": (1024, 64), "compression": "gzip"}])
    def test_rows_that_were_never_written_are_refused_before_allocating(self, options, tmp_path):
        with self.h5py.File(tmp_path / "v.hdf5", "w") as file:
            made = file.create_dataset("vectors", (10**9, 64), np.float32, **options)
            if options:
                made[0] = 1.0
        with pytest.raises(InputError, match="bytes of them were written"):
            read(tmp_path / "v.hdf5")

    def test_a_compressed_dataset_is_read(self, tmp_path):
        path = self.write(tmp_path / "v.hdf5", {"compression": "gzip"}, vectors=np.zeros((5000, 64), np.float32))
        assert read(path).vectors.shape == (5000, 64)

    def test_bad_datasets_are_refused(self, tmp_path):
        for data, sentence in [
            (np.zeros((2, 2), bool), "bool; expected floats"),
            (VECTORS[0], "two axes"),
            (np.float32(1), "two axes"),
            (VECTORS[:0], "at least one row"),
            (self.h5py.Empty("f4"), "two axes"),
        ]:
            path = self.write(tmp_path / "v.h5", x=data)
            with pytest.raises(InputError, match=sentence):
                read(f"{path}::x")
