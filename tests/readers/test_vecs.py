""".fvecs and .bvecs files, checked; the first stay on disk, the second become floats."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_files import VECTORS, bvecs_bytes, fvecs_bytes

from softindex.errors import InputError, SoftindexError
from softindex.readers.tables import Request
from softindex.readers.vecs import read_bvecs, read_fvecs
from softindex.vectors import read


class TestFvecs:
    def test_the_file_stays_on_disk(self, put):
        vectors = read(put("v.fvecs", fvecs_bytes(VECTORS))).vectors
        assert isinstance(vectors, np.memmap)
        assert vectors.flags.aligned
        np.testing.assert_array_equal(vectors, VECTORS)

    def test_a_row_with_another_dimension_is_named(self, put):
        content = bytearray(fvecs_bytes(np.ones((300_000, 4), np.float32)))
        content[20 * 277_777] = 5
        with pytest.raises(InputError, match=r"row 277777 of .* states 5 dimensions but row 0 has 4"):
            read(put("v.fvecs", bytes(content)))

    def test_every_truncation_inside_a_row_is_refused(self, put):
        whole = fvecs_bytes(VECTORS)
        for size in range(len(whole)):
            path = put("cut.fvecs", whole[:size])
            if size % 20 == 0 and size:
                np.testing.assert_array_equal(read(path).vectors, VECTORS[: size // 20])
            else:
                with pytest.raises(InputError):
                    read(path)

    @settings(max_examples=200, deadline=None)
    @given(dimensions=st.integers(-2, 6), rest=st.binary(max_size=120))
    def test_whatever_the_bytes_only_our_errors_come_out(self, dimensions, rest, scratch):
        path = scratch / "v.fvecs"
        path.write_bytes(dimensions.to_bytes(4, "little", signed=True) + rest)
        try:
            vectors = read_fvecs(Request(str(path), None, True)).vectors
        except SoftindexError:
            return
        assert vectors.shape[1] == dimensions
        assert vectors.size <= len(rest) // 4


class TestBvecs:
    BYTES = np.random.default_rng(2).integers(0, 256, (50, 7), np.uint8)

    def test_bytes_become_the_same_numbers(self, put):
        vectors = read(put("v.bvecs", bvecs_bytes(self.BYTES))).vectors
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, self.BYTES)

    def test_more_than_one_block_is_read(self, put):
        many = np.random.default_rng(3).integers(0, 256, (300_000, 5), np.uint8)
        np.testing.assert_array_equal(read(put("v.bvecs", bvecs_bytes(many))).vectors, many)

    def test_a_row_with_another_dimension_is_named(self, put):
        content = bytearray(bvecs_bytes(np.ones((300_000, 5), np.uint8)))
        content[9 * 277_777] = 6
        with pytest.raises(
            InputError, match=r"row 277777 of .* states 6 dimensions but row 0 has 5; .* a \.bvecs file"
        ):
            read(put("v.bvecs", bytes(content)))

    def test_every_truncation_inside_a_row_is_refused(self, put):
        whole = bvecs_bytes(self.BYTES[:4])
        for size in range(len(whole)):
            path = put("cut.bvecs", whole[:size])
            if size % 11 == 0 and size:
                np.testing.assert_array_equal(read(path).vectors, self.BYTES[: size // 11])
            else:
                with pytest.raises(InputError):
                    read(path)

    @settings(max_examples=200, deadline=None)
    @given(dimensions=st.integers(-2, 6), rest=st.binary(max_size=60))
    def test_whatever_the_bytes_only_our_errors_come_out(self, dimensions, rest, scratch):
        path = scratch / "v.bvecs"
        path.write_bytes(dimensions.to_bytes(4, "little", signed=True) + rest)
        try:
            vectors = read_bvecs(Request(str(path), None, True)).vectors
        except SoftindexError:
            return
        assert vectors.shape[1] == dimensions
        assert vectors.size <= len(rest)
