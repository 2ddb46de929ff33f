""".npy files, mapped and never loaded."""

import tracemalloc

import numpy as np
import pytest
from vector_files import VECTORS

from softindex.errors import InputError
from softindex.vectors import read


class TestNpy:
    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_the_file_stays_on_disk(self, dtype, tmp_path):
        np.save(tmp_path / "v.npy", VECTORS.astype(dtype))
        vectors = read(tmp_path / "v.npy").vectors
        assert isinstance(vectors, np.memmap)
        assert not vectors.flags.writeable
        np.testing.assert_array_equal(vectors, VECTORS.astype(dtype))

    def test_fortran_order_and_foreign_byte_order_are_read(self, tmp_path):
        np.save(tmp_path / "fortran.npy", np.asfortranarray(VECTORS))
        np.save(tmp_path / "foreign.npy", VECTORS.astype(">f4"))
        for name in ("fortran", "foreign"):
            vectors = read(tmp_path / f"{name}.npy").vectors
            assert vectors.dtype.isnative
            np.testing.assert_array_equal(vectors, VECTORS)

    def test_a_large_file_costs_no_memory(self, tmp_path):
        np.lib.format.open_memmap(tmp_path / "v.npy", mode="w+", dtype=np.float32, shape=(500_000, 64))
        tracemalloc.start()
        read(tmp_path / "v.npy")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1e6

    @pytest.mark.parametrize(
        ("array", "sentence"),
        [
            (VECTORS.astype(np.complex64), "complex64; softindex keeps float32"),
            (VECTORS[0], "two axes"),
            (VECTORS[:0], "at least one row"),
            (np.array([[1, None]], object), "could not be read"),
        ],
    )
    def test_what_an_array_may_not_be_a_file_may_not_be(self, array, sentence, tmp_path):
        np.save(tmp_path / "v.npy", array)
        with pytest.raises(InputError, match=sentence):
            read(tmp_path / "v.npy")

    def test_every_truncation_is_refused(self, tmp_path, put):
        np.save(tmp_path / "v.npy", VECTORS)
        whole = (tmp_path / "v.npy").read_bytes()
        for size in range(len(whole)):
            with pytest.raises(InputError):
                read(put("cut.npy", whole[:size]))
