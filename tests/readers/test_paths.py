"""Which reader a path gets, and what is said where there is none."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_files import VECTORS, fvecs_bytes

from softindex import readers
from softindex.errors import InputError, MissingDependencyError, SoftindexError
from softindex.vectors import read


class TestPaths:
    def test_a_string_a_path_and_bytes_name_the_same_file(self, tmp_path):
        path = tmp_path / "v.npy"
        np.save(path, VECTORS)
        for name in (path, str(path), str(path).encode()):
            np.testing.assert_array_equal(read(name).vectors, VECTORS)

    def test_suffixes_are_read_in_any_case(self, tmp_path):
        np.save(tmp_path / "v.npy", VECTORS)
        (tmp_path / "v.npy").rename(tmp_path / "V.NPY")
        np.testing.assert_array_equal(read(tmp_path / "V.NPY").vectors, VECTORS)

    @pytest.mark.parametrize("suffix", [*readers.NAMED, *readers.SINGLE])
    def test_a_missing_file_and_a_directory_are_refused(self, suffix, tmp_path):
        with pytest.raises(InputError, match="there is no file at"):
            read(tmp_path / f"nothing{suffix}")
        (tmp_path / f"folder{suffix}").mkdir()
        with pytest.raises(InputError, match="there is no file at"):
            read(tmp_path / f"folder{suffix}")

    def test_an_unknown_format_is_refused_with_the_known_ones(self, put):
        with pytest.raises(InputError, match=r"expected one of .*\.safetensors.*\.txt"):
            read(put("v.xlsx", b"1,2"))

    def test_a_name_makes_no_sense_for_a_file_with_one_array(self, put):
        with pytest.raises(InputError, match="one array only"):
            read(f"{put('v.fvecs', fvecs_bytes(VECTORS))}::x")

    def test_a_name_may_not_be_empty(self, tmp_path):
        with pytest.raises(InputError, match="without a name"):
            read(f"{tmp_path / 'v.npz'}::")

    def test_a_file_really_named_with_colons_is_read(self, tmp_path):
        np.savez(tmp_path / "a::b.npz", vectors=VECTORS)
        np.testing.assert_array_equal(read(tmp_path / "a::b.npz").vectors, VECTORS)

    @pytest.mark.filterwarnings("ignore:read .* rows:UserWarning")
    @pytest.mark.parametrize("suffix", [*readers.NAMED, *readers.SINGLE])
    @settings(max_examples=30, deadline=None)
    @given(content=st.binary(max_size=300))
    def test_garbage_of_any_kind_is_an_input_error(self, suffix, content, scratch):
        path = scratch / f"v{suffix}"
        path.write_bytes(content)
        try:
            source = read(path)
        except SoftindexError:
            return
        assert source.vectors.ndim == 2


@pytest.mark.parametrize(("suffix", "package"), [(".parquet", "pyarrow"), (".hdf5", "h5py"), (".h5", "h5py")])
def test_a_missing_library_is_named_with_the_way_to_install_it(suffix, package, put, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf'needs {package}; .*pip install "\.\[data\]"'):
        read(put(f"v{suffix}", b"anything"))
