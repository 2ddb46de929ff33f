"""What the checks at the door accept, return and refuse."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import softindex
from matrices import matrices, matrix
from softindex.arguments import check_ids, check_per_item, check_queries, check_vectors
from softindex.errors import InputError
from softindex.vectors import read


def write(path, rows):
    """Save rows (n, d) in the format of the suffix."""
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".npz":
        np.savez(path, vectors=rows)
    elif path.suffix == ".safetensors":
        pytest.importorskip("safetensors.numpy").save_file({"vectors": rows}, path)
    elif path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow").table({"vectors": list(rows)})
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["vectors"] = rows


class TestReadingArrays:
    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_an_array_of_the_right_dtype_is_not_copied(self, dtype):
        vectors = matrix(dtype=dtype)
        source = read(vectors)
        assert source.vectors is vectors
        assert source.ids is None

    @pytest.mark.parametrize("view", [np.s_[::2], np.s_[:, ::2], np.s_[::-1]])
    def test_a_view_is_not_copied(self, view):
        vectors = matrix()
        assert np.shares_memory(read(vectors[view]).vectors, vectors)

    def test_fortran_order_is_not_copied(self):
        vectors = np.asfortranarray(matrix())
        assert read(vectors).vectors is vectors

    def test_a_memmap_stays_a_memmap(self, tmp_path):
        vectors = np.memmap(tmp_path / "raw", np.float32, "w+", shape=(4, 3))
        assert read(vectors).vectors is vectors

    @pytest.mark.parametrize("dtype", [">f4", ">f2", "<f4"])
    def test_any_byte_order_becomes_native(self, dtype):
        vectors = matrix()
        read_back = read(vectors.astype(dtype)).vectors
        assert read_back.dtype.isnative
        np.testing.assert_array_equal(read_back, vectors.astype(np.dtype(dtype).newbyteorder("=")))

    def test_unaligned_rows_are_copied_to_aligned_ones(self):
        packed = np.zeros(4, dtype=np.dtype([("tag", "u1"), ("vector", "f4", (3,))]))
        packed["vector"] = 1.5
        vectors = read(packed["vector"]).vectors
        assert vectors.flags.aligned
        assert (vectors == 1.5).all()

    @pytest.mark.parametrize("dtype", [np.complex64, object, bool, "U3", "S3"])
    def test_other_dtypes_are_refused_with_the_cure(self, dtype):
        with pytest.raises(InputError, match=r"softindex keeps float32 or float16: convert with numpy\.asarray"):
            read(np.ones((2, 2)).astype(dtype))

    def test_uint16_may_be_bfloat16_and_is_not_to_be_cast(self):
        with pytest.raises(InputError, match=r"<< 16\)\.view\('float32'\) if they are bfloat16"):
            read(np.ones((2, 2), np.uint16))

    @pytest.mark.parametrize("dtype", [np.float64, np.longdouble, np.int64, np.int32, np.uint8, ">f8"])
    def test_other_numbers_become_float32_with_one_note(self, dtype):
        given = np.arange(6).reshape(3, 2).astype(dtype)
        with pytest.warns(UserWarning, match=f"vectors are {given.dtype.name}: softindex keeps float32") as notes:
            vectors = read(given).vectors
        assert len(notes) == 1
        assert notes[0].filename == __file__  # the line to change, not one of ours
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, given)

    def test_a_list_of_lists_is_float64(self):
        with pytest.warns(UserWarning, match="vectors are float64"):
            assert read([[1.0, 2.0], [3.0, 4.0]]).vectors.dtype == np.float32

    @pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors", "parquet", "h5"])
    @pytest.mark.parametrize("dtype", [np.float64, np.int64])
    def test_every_file_of_other_numbers_is_read_with_one_note(self, tmp_path, suffix, dtype):
        path, rows = tmp_path / f"v.{suffix}", np.arange(6).reshape(3, 2).astype(dtype)
        write(path, rows)
        with pytest.warns(UserWarning, match="softindex keeps float32") as notes:
            source = read(path)
        assert len(notes) == 1
        np.testing.assert_array_equal(source.vectors, rows)

    def test_a_number_beyond_float32_is_refused_by_its_row(self):
        with (
            pytest.warns(UserWarning, match="float64"),
            pytest.raises(InputError, match=r"row 1 .* has inf in column 0"),
        ):
            softindex.build([[1.0, 2.0], [1e300, 0.0]])

    def test_a_ragged_list_is_refused(self):
        with pytest.raises(InputError, match="cannot be turned into an array"):
            read([[1.0, 2.0], [3.0]])

    @pytest.mark.parametrize("shape", [(), (4,), (2, 2, 2)])
    def test_anything_but_two_axes_is_refused(self, shape):
        with pytest.raises(InputError, match="expected two axes"):
            read(np.zeros(shape, np.float32))

    @pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
    def test_an_empty_matrix_is_refused(self, shape):
        with pytest.raises(InputError, match="at least one row and one dimension"):
            read(np.zeros(shape, np.float32))

    def test_a_masked_array_is_refused_rather_than_unmasked(self):
        with pytest.raises(InputError, match="masked array"):
            read(np.ma.masked_equal(matrix(), 0))

    @pytest.mark.parametrize("thing", [None, 3, object(), {1: 2}, (x for x in ())])
    def test_things_that_are_no_matrix_are_refused(self, thing):
        with pytest.raises(InputError):
            read(thing)

    def test_ids_are_checked_against_the_rows(self):
        assert read(matrix(), ids=list("abcde")).ids.tolist() == list("abcde")
        with pytest.raises(InputError, match="4 ids were given for 5 vectors"):
            read(matrix(), ids=[1, 2, 3, 4])


class TestReadingTensors:
    @pytest.fixture(autouse=True)
    def library(self):
        self.torch = pytest.importorskip("torch")

    def test_a_tensor_shares_its_memory(self):
        tensor = self.torch.ones(3, 4, requires_grad=True)
        vectors = read(tensor).vectors
        assert np.shares_memory(vectors, tensor.detach().numpy())

    def test_a_parameter_and_a_subclass_are_tensors_too(self):
        class Mine(self.torch.Tensor):
            pass

        parameter = self.torch.nn.Parameter(self.torch.ones(3, 4))
        assert read(parameter).vectors.shape == (3, 4)
        assert read(self.torch.ones(3, 4).as_subclass(Mine)).vectors.shape == (3, 4)

    def test_bfloat16_becomes_float32_exactly(self):
        tensor = self.torch.randn(5, 4).bfloat16()
        vectors = read(tensor).vectors
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, tensor.float().numpy())

    def test_half_stays_half_and_double_becomes_float32(self):
        assert read(self.torch.ones(2, 2).half()).vectors.dtype == np.float16
        with pytest.warns(UserWarning, match="float64"):
            assert read(self.torch.ones(2, 2).double()).vectors.dtype == np.float32

    def test_tensors_without_plain_data_are_refused(self):
        for tensor in (self.torch.ones(2, 2).to_sparse(), self.torch.ones(2, 2, device="meta")):
            with pytest.raises(InputError, match="pass a NumPy array"):
                read(tensor)
        with pytest.raises(InputError):
            read(self.torch.nn.Linear(2, 2))

    def test_queries_ids_and_biases_may_be_tensors(self):
        block, single = check_queries(self.torch.ones(4).bfloat16(), 4)
        assert single
        assert block.tolist() == [[1, 1, 1, 1]]
        assert check_ids(self.torch.tensor([4, 5]), 2).tolist() == [4, 5]
        assert check_per_item(self.torch.zeros(2), 2, name="log_bias").tolist() == [0, 0]


def test_checking_imports_neither_torch_nor_the_file_libraries():
    code = (
        "import sys, softindex.vectors as v, numpy as np; v.read(np.ones((2, 2), np.float32));"
        "sys.exit(any(name in sys.modules for name in ('torch', 'pyarrow', 'h5py', 'safetensors')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestVectorValues:
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_the_first_bad_row_and_column_are_named(self, bad, dtype):
        vectors = matrix(100, 7, dtype)
        vectors[41, 3] = bad
        vectors[60, 0] = bad
        for block_rows in (None, 1, 3, 1000):
            with pytest.raises(InputError, match=f"row 41 of the vectors has {bad} in column 3"):
                check_vectors(vectors, block_rows=block_rows)

    @pytest.mark.parametrize("value", [1.1e15, 1e19, 3e38])
    def test_a_vector_so_long_that_scores_overflow_is_refused(self, value):
        vectors = matrix()
        vectors[3, 1] = -value
        with pytest.raises(InputError, match=r"row 3 of the vectors has length .* rescale"):
            check_vectors(vectors)

    def test_long_vectors_are_fine_together_when_each_is_fine(self):
        check_vectors(np.full((1000, 1), 0.99e15, np.float32))

    def test_the_largest_and_smallest_halves_are_fine(self):
        check_vectors(np.full((3, 100), 65504, np.float16))
        check_vectors(np.full((3, 100), -6e-8, np.float16))

    @given(
        matrices(
            [np.float32, np.float16],
            hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
            [0.0, -1.0, 1e-30, 6e4, np.nan, np.inf, -np.inf, 1e16],
        ),
        st.integers(1, 7),
    )
    def test_it_refuses_exactly_what_is_not_finite_or_too_long(self, vectors, block_rows):
        squared = (vectors.astype(np.float64) ** 2).sum(axis=1)
        for view in (vectors, np.asfortranarray(vectors), np.repeat(vectors, 2, axis=1)[:, ::2]):
            if np.isfinite(vectors).all() and (squared <= 1e30).all():
                check_vectors(view, block_rows=block_rows)
            else:
                with pytest.raises(InputError):
                    check_vectors(view, block_rows=block_rows)

    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_checking_takes_a_few_megabytes_whatever_the_size(self, dtype, tmp_path):
        vectors = np.memmap(tmp_path / "big", dtype, "w+", shape=(200_000, 128))
        tracemalloc.start()
        check_vectors(vectors[:, ::-1])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16e6
