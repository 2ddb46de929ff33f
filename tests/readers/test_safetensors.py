""".safetensors files, and damaged ones, through our own parser."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_files import VECTORS, safetensors_bytes

from softindex.errors import InputError, SoftindexError
from softindex.readers.safetensors import read_safetensors
from softindex.readers.tables import Request
from softindex.vectors import read


class TestSafetensors:
    @pytest.fixture(autouse=True)
    def library(self):
        self.numpy = pytest.importorskip("safetensors.numpy")

    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_the_tensor_stays_on_disk(self, dtype, tmp_path):
        path = tmp_path / "v.safetensors"
        self.numpy.save_file(
            {"emb": VECTORS.astype(dtype), "ids": np.arange(6)[::-1].copy(), "bias": np.zeros(4, np.float32)},
            path,
            metadata={"format": "np"},
        )
        source = read(path)
        assert isinstance(source.vectors, np.memmap)
        assert source.vectors.flags.aligned
        np.testing.assert_array_equal(source.vectors, VECTORS.astype(dtype))
        assert source.ids.tolist() == [5, 4, 3, 2, 1, 0]

    def test_bfloat16_becomes_float32_exactly(self, tmp_path):
        torch = pytest.importorskip("torch")
        tensor = torch.randn(700, 3).bfloat16()
        tensor[0] = torch.tensor([float("inf"), -0.0, 1e-40])
        pytest.importorskip("safetensors.torch").save_file({"w": tensor}, tmp_path / "v.safetensors")
        vectors = read(tmp_path / "v.safetensors").vectors
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, tensor.float().numpy())

    def test_several_matrices_are_listed_and_one_can_be_named(self, tmp_path):
        path = tmp_path / "v.safetensors"
        self.numpy.save_file({"a.weight": VECTORS, "b.weight": VECTORS * 2, "n": np.arange(3)}, path)
        with pytest.raises(InputError, match=r"a\.weight \(6, 4\) F32"):
            read(path)
        np.testing.assert_array_equal(read(f"{path}::b.weight").vectors, VECTORS * 2)
        with pytest.raises(InputError, match="two axes"):
            read(f"{path}::n")

    def test_integers_are_read_where_they_are_named(self, tmp_path):
        path = tmp_path / "v.safetensors"
        self.numpy.save_file({"a": VECTORS, "i": np.arange(4, dtype=np.int32).reshape(2, 2)}, path)
        with pytest.warns(UserWarning, match="int32: softindex keeps float32"):
            assert read(f"{path}::i").vectors.tolist() == [[0, 1], [2, 3]]
        assert read(path).vectors.shape == VECTORS.shape

    def test_ids_that_are_floats_or_empty_are_refused_unless_the_caller_has_ids(self, tmp_path):
        path = tmp_path / "v.safetensors"
        for ids, sentence in (
            (np.zeros(6, np.float32), "expected integers"),
            (np.zeros(0, np.int64), "empty"),
        ):
            self.numpy.save_file({"a": VECTORS, "ids": ids}, path)
            with pytest.raises(InputError, match=sentence):
                read(path)
            assert len(read(path, ids=range(6)).ids) == 6

    def test_an_empty_tensor_is_refused(self, tmp_path):
        self.numpy.save_file({"a": np.zeros((0, 4), np.float32)}, tmp_path / "v.safetensors")
        with pytest.raises(InputError, match="at least one row"):
            read(tmp_path / "v.safetensors")

    def test_an_unaligned_tensor_is_copied_to_an_aligned_one(self, put):
        header = b'{"a": {"dtype": "F32", "shape": [6, 4], "data_offsets": [1, 97]}}'
        path = put("v.safetensors", safetensors_bytes(header, b"\0" + VECTORS.tobytes()))
        vectors = read(path).vectors
        assert vectors.flags.aligned
        np.testing.assert_array_equal(vectors, VECTORS)

    def test_every_truncation_is_refused(self, tmp_path, put):
        self.numpy.save_file({"a": VECTORS}, tmp_path / "v.safetensors")
        whole = (tmp_path / "v.safetensors").read_bytes()
        for size in range(len(whole)):
            with pytest.raises(InputError):
                read_safetensors(Request(str(put("cut.safetensors", whole[:size])), None, True))

    @pytest.mark.parametrize(
        "content",
        [
            safetensors_bytes(b"{}", length=2**64 - 1),
            safetensors_bytes(b"{}", length=2**63),
            safetensors_bytes(b"{}" + b" " * 100, length=103),
            safetensors_bytes(b"[]"),
            safetensors_bytes(b"null"),
            safetensors_bytes(b"\xff\xfe"),
            safetensors_bytes(b"[" * 100_000),
            safetensors_bytes(b'{"a": ' * 100_000),
            safetensors_bytes(b'{"a": ' + b"9" * 5000 + b"}"),
            safetensors_bytes({"a": []}),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [1, 1]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": 32, "shape": [1, 1], "data_offsets": [0, 4]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [1, True], "data_offsets": [0, 4]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [1, 1.0], "data_offsets": [0, 4]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [1] * 33, "data_offsets": [0, 4]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 8]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [1, 1], "data_offsets": [4, 0]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [1, 1], "data_offsets": [-4, 0]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4, 4]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 4]}}, b"\0" * 4),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}),
            safetensors_bytes({"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}),
            safetensors_bytes({"a": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [0, 4]}}, b"\0" * 4),
        ],
    )
    def test_malformed_headers_are_refused(self, content, put):
        path = put("v.safetensors", content)
        for name in (None, "a"):
            with pytest.raises(InputError):
                read_safetensors(Request(str(path), name, True))

    values = st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats()
        | st.sampled_from(["F32", "BF16", "I64"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "ids"]), inner),
        max_leaves=6,
    )
    tensor = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F16", "BF16", "F64", "I64", "U8", "X"]) | values,
            "shape": st.lists(st.integers(-1, 5), max_size=3) | values,
            "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | values,
        }
    )

    @settings(max_examples=400, deadline=None)
    @given(
        header=st.dictionaries(st.sampled_from(["a", "ids", "__metadata__"]), tensor | values) | values,
        data=st.binary(max_size=48),
        want_ids=st.booleans(),
    )
    def test_whatever_the_header_says_only_our_errors_come_out(self, header, data, want_ids, scratch):
        path = scratch / "v.safetensors"
        path.write_bytes(safetensors_bytes(header, data))
        try:
            loaded = read_safetensors(Request(str(path), None, want_ids))
        except SoftindexError:
            return
        assert loaded.vectors.ndim == 2
        assert loaded.vectors.nbytes <= 2 * len(data)

    @settings(max_examples=300, deadline=None)
    @given(place=st.integers(0, 10_000), value=st.integers(0, 255))
    def test_one_changed_byte_gives_our_error_or_a_matrix_inside_the_file(self, place, value, scratch):
        tensors = {"a": VECTORS, "b": np.zeros((2, 2), np.float16), "ids": np.arange(6)}
        content = bytearray(self.numpy.save(tensors, metadata={"format": "np"}))
        content[place % len(content)] = value
        path = scratch / "v.safetensors"
        path.write_bytes(content)
        try:
            loaded = read_safetensors(Request(str(path), "a", True))
        except SoftindexError:
            return
        assert loaded.vectors.ndim == 2
        assert loaded.vectors.nbytes <= len(content)
