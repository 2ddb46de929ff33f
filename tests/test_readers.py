"""Files of every format, written by the libraries people write them with, and damaged ones."""

import gzip
import json
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softindex import readers
from softindex.errors import InputError, MissingDependencyError, SoftindexError
from softindex.readers.contents import Request
from softindex.readers.fvecs import read_fvecs
from softindex.readers.safetensors import read_safetensors
from softindex.readers.text import read_text
from softindex.vectors import read

VECTORS = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
WORDS = ["the", "New York", "naïve", "日本", "\u00a0", "of\u2028all"]


def fvecs_bytes(vectors):
    rows, dimensions = vectors.shape
    words = np.empty((rows, 1 + dimensions), "<i4")
    words[:, 0] = dimensions
    words[:, 1:] = vectors.astype("<f4").view("<i4")
    return words.tobytes()


def safetensors_bytes(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def text_bytes(words, vectors, head=b"", tail=b""):
    lines = [
        f"{word} {' '.join(map(repr, row))}".encode() + tail for word, row in zip(words, vectors.tolist(), strict=True)
    ]
    return head + b"\n".join(lines) + b"\n"


@pytest.fixture
def put(tmp_path):
    """Write bytes under a name and return the path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A folder that the generated examples of this module share: each writes its file anew."""
    return tmp_path_factory.mktemp("scratch")


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
            read(put("v.csv", b"1,2"))

    def test_a_name_makes_no_sense_for_a_file_with_one_array(self, put):
        with pytest.raises(InputError, match="one array only"):
            read(f"{put('v.fvecs', fvecs_bytes(VECTORS))}::x")

    def test_a_name_may_not_be_empty(self, tmp_path):
        with pytest.raises(InputError, match="without a name"):
            read(f"{tmp_path / 'v.npz'}::")

    def test_a_file_really_named_with_colons_is_read(self, tmp_path):
        np.savez(tmp_path / "a::b.npz", vectors=VECTORS)
        np.testing.assert_array_equal(read(tmp_path / "a::b.npz").vectors, VECTORS)

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
            (VECTORS.astype(np.float64), "float64; softindex keeps float32"),
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


class TestNpz:
    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_the_only_float_matrix_is_taken_with_its_ids(self, save, tmp_path):
        save(
            tmp_path / "v.npz",
            anything=VECTORS,
            ids=np.arange(6) * 10,
            other=np.zeros(3),
            count=np.eye(3, dtype=int),
        )
        source = read(tmp_path / "v.npz")
        np.testing.assert_array_equal(source.vectors, VECTORS)
        assert source.ids.tolist() == [0, 10, 20, 30, 40, 50]

    def test_the_callers_ids_win_and_the_stored_ones_are_not_opened(self, tmp_path):
        np.savez(tmp_path / "v.npz", vectors=VECTORS, ids=np.array(WORDS, object))
        assert read(tmp_path / "v.npz", ids=range(6)).ids.tolist() == list(range(6))
        with pytest.raises(InputError, match="pickled"):
            read(tmp_path / "v.npz")

    def test_string_ids_are_kept(self, tmp_path):
        np.savez(tmp_path / "v.npz", vectors=VECTORS, ids=np.array(WORDS))
        assert read(tmp_path / "v.npz").ids.tolist() == WORDS

    @pytest.mark.parametrize("preferred", ["vectors", "embeddings", "weight", "train"])
    def test_a_preferred_name_settles_it(self, preferred, tmp_path):
        np.savez(tmp_path / "v.npz", **{"other": VECTORS * 2, preferred: VECTORS, "test": VECTORS * 3})
        np.testing.assert_array_equal(read(tmp_path / "v.npz").vectors, VECTORS)

    def test_several_matrices_are_listed_and_one_can_be_named(self, tmp_path):
        path = tmp_path / "v.npz"
        np.savez(path, one=VECTORS, two=VECTORS[:3], ids=np.arange(3))
        with pytest.raises(InputError, match=r"v\.npz::name.*one \(6, 4\) float32, two \(3, 4\) float32"):
            read(path)
        source = read(f"{path}::two")
        np.testing.assert_array_equal(source.vectors, VECTORS[:3])
        assert source.ids.tolist() == [0, 1, 2]
        with pytest.raises(InputError, match="nothing named 'three'; it holds one"):
            read(f"{path}::three")
        with pytest.raises(InputError, match=r"ids' in .* have shape"):
            read(f"{path}::ids")

    def test_no_matrix_at_all_is_refused(self, tmp_path):
        np.savez(tmp_path / "v.npz", a=np.zeros(3))
        with pytest.raises(InputError, match="no float matrix"):
            read(tmp_path / "v.npz")
        np.savez(tmp_path / "v.npz")
        with pytest.raises(InputError, match="no arrays at all"):
            read(tmp_path / "v.npz")

    def test_a_long_listing_is_cut_short(self, tmp_path):
        np.savez(tmp_path / "v.npz", **{f"layer{i}": VECTORS for i in range(50)})
        with pytest.raises(InputError, match=r"layer19 .*, and 30 more"):
            read(tmp_path / "v.npz")

    def test_a_header_that_claims_more_than_the_member_holds_is_refused_before_allocating(self, tmp_path):
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4), }\n"
        member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 64
        with zipfile.ZipFile(tmp_path / "v.npz", "w") as archive:
            archive.writestr("vectors.npy", member)
        with pytest.raises(InputError, match="cut off"):
            read(tmp_path / "v.npz")

    def test_damage_anywhere_is_refused_or_harmless(self, tmp_path, put):
        np.savez(tmp_path / "v.npz", vectors=VECTORS)
        whole = (tmp_path / "v.npz").read_bytes()
        for place in range(0, len(whole), 3):
            damaged = whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]
            for content in (damaged, whole[:place]):
                try:
                    vectors = read(put("damaged.npz", content)).vectors
                except SoftindexError:
                    continue
                # The checksum covers every value, so what still reads is a change of some unused field.
                np.testing.assert_array_equal(vectors, VECTORS)


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

    def test_other_dtypes_are_refused(self, tmp_path):
        path = tmp_path / "v.safetensors"
        self.numpy.save_file({"a": VECTORS.astype(np.float64), "i": np.ones((2, 2), np.int32)}, path)
        with pytest.raises(InputError, match="float64; softindex keeps"):
            read(path)
        with pytest.raises(InputError, match="I32; expected F32, F16 or BF16"):
            read(f"{path}::i")

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


class TestText:
    @pytest.mark.parametrize("head", [b"", b"6 4\n"])
    @pytest.mark.parametrize("tail", [b"", b" ", b"\r"])
    @pytest.mark.parametrize("name", ["v.txt", "v.vec", "v.txt.gz", "v.vec.gz"])
    def test_words_and_numbers_come_back_exactly(self, head, tail, name, put):
        content = text_bytes(WORDS, VECTORS, head, tail)
        source = read(put(name, gzip.compress(content) if name.endswith("gz") else content))
        np.testing.assert_array_equal(source.vectors, VECTORS)
        assert source.ids.tolist() == WORDS

    def test_a_long_file_grows_beyond_the_first_block(self, put):
        vectors = np.random.default_rng(2).integers(-9, 9, (3000, 400)).astype(np.float32)
        source = read(put("v.txt", text_bytes([f"w{i}" for i in range(3000)], vectors)))
        np.testing.assert_array_equal(source.vectors, vectors)
        assert source.vectors.base is None

    def test_the_callers_ids_replace_the_words(self, put):
        assert read(put("v.txt", text_bytes(WORDS, VECTORS)), ids=range(6)).ids.tolist() == list(range(6))

    def test_bare_numbers_are_not_taken_for_words(self, tmp_path):
        np.savetxt(tmp_path / "v.txt", np.random.default_rng(0).standard_normal((5, 4)))
        with pytest.raises(InputError, match="where a word belongs"):
            read(tmp_path / "v.txt")

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"", "line 1 of .* holds no vector"),
            (b"word\n", "line 1 of .* holds no vector"),
            (b"5 0\n", "line 1 of .* holds no vector"),
            (b"a 1 2\nb 1\n", "line 2 of .* has 1 values; expected a word and 2"),
            (b"a 1 2\n 1 2\n", "line 2 of"),
            (b"2 2\na 1 2\nb 1 x\n", "line 3 of .* is malformed"),
            (b"a 1 2\nb 1 2 \x803\n", "line 2 of .* is malformed"),
            (b"a 1 2\n\xff 1 2\n", "line 2 of .* is not UTF-8"),
            (b"3 2\na 1 2\nb 1 2\n", "states 3 words in line 1 but holds 2"),
            (b"1 999999999999\na 1 2\n", "line 2 of .* has 2 values"),
            (b"999999999999 2\na 1 2\n", "holds 1"),
            (b"0 2\n", "at least one row"),
            (b"a 1 2\nb 1 2\na 3 4\n", "id 'a' is given more than once"),
        ],
    )
    def test_malformed_text_is_refused_with_its_line(self, content, sentence, put):
        with pytest.raises(InputError, match=sentence):
            read(put("v.txt", content))

    def test_a_truncated_gzip_is_refused(self, put):
        packed = gzip.compress(text_bytes(WORDS, VECTORS))
        for size in range(len(packed)):
            with pytest.raises(InputError):
                read(put("v.txt.gz", packed[:size]))

    @settings(max_examples=200, deadline=None)
    @given(text=st.text("a1. -e\n\u00a0x", max_size=60))
    def test_whatever_the_text_only_our_errors_come_out(self, text, scratch):
        path = scratch / "v.txt"
        path.write_text(text, encoding="utf-8", newline="")
        try:
            loaded = read_text(Request(str(path), None, True))
        except SoftindexError:
            return
        assert len(loaded.ids) == len(loaded.vectors)


class TestParquet:
    @pytest.fixture(autouse=True)
    def library(self):
        self.pyarrow = pytest.importorskip("pyarrow")
        self.parquet = pytest.importorskip("pyarrow.parquet")

    def write(self, path, row_group_size=None, **columns):
        self.parquet.write_table(self.pyarrow.table(columns), path, row_group_size=row_group_size)
        return path

    def lists(self, vectors, kind="float32"):
        value_type = self.pyarrow.type_for_alias(kind)
        return self.pyarrow.array(vectors.tolist(), self.pyarrow.list_(value_type))

    def fixed(self, vectors):
        return self.pyarrow.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])

    @pytest.mark.parametrize("kind", ["float32", "float64", "halffloat"])
    def test_a_column_of_lists_is_read_with_its_ids(self, kind, tmp_path):
        vectors = VECTORS.astype(np.float16 if kind == "halffloat" else np.float32)
        path = self.write(
            tmp_path / "v.parquet",
            2,
            id=WORDS,
            emb=self.lists(vectors.astype(np.float16) if kind == "halffloat" else vectors, kind),
            price=[1.0] * 6,
        )
        source = read(path)
        assert source.vectors.dtype == np.float32
        np.testing.assert_array_equal(source.vectors, vectors.astype(np.float32))
        assert source.ids.tolist() == WORDS

    def test_fixed_size_and_large_lists_are_read_in_many_blocks(self, tmp_path):
        vectors = np.random.default_rng(3).standard_normal((20_001, 3)).astype(np.float32)
        large = self.lists(vectors).cast(self.pyarrow.large_list(self.pyarrow.float32()))
        for column in (self.fixed(vectors), large):
            path = self.write(tmp_path / "v.parquet", 7001, emb=column, ids=np.arange(20_001)[::-1])
            source = read(path)
            np.testing.assert_array_equal(source.vectors, vectors)
            assert source.ids.dtype == np.int64
            assert source.ids[0] == 20_000

    def test_one_column_per_dimension_is_read_in_order(self, tmp_path):
        columns = {f"x{j}": VECTORS[:, j].astype(np.float64 if j else np.float32) for j in range(4)}
        source = read(self.write(tmp_path / "v.parquet", 4, name=WORDS, id=range(6), **columns))
        np.testing.assert_array_equal(source.vectors, VECTORS)
        assert source.ids.tolist() == list(range(6))

    def test_dictionary_encoded_ids_are_strings(self, tmp_path):
        ids = self.pyarrow.array(WORDS).dictionary_encode()
        assert read(self.write(tmp_path / "v.parquet", id=ids, v=self.fixed(VECTORS))).ids.tolist() == WORDS

    def test_several_list_columns_are_settled_by_name(self, tmp_path):
        path = self.write(tmp_path / "v.parquet", a=self.fixed(VECTORS), b=self.fixed(VECTORS * 2))
        with pytest.raises(InputError, match=r"v\.parquet::name.* a fixed_size_list"):
            read(path)
        np.testing.assert_array_equal(read(f"{path}::b").vectors, VECTORS * 2)
        path = self.write(tmp_path / "w.parquet", a=self.fixed(VECTORS), embeddings=self.fixed(VECTORS * 2))
        np.testing.assert_array_equal(read(path).vectors, VECTORS * 2)

    def test_a_float64_beyond_float32_becomes_inf_for_the_next_check(self, tmp_path):
        path = self.write(tmp_path / "v.parquet", a=self.lists(np.array([[1e300, 0.0]]), "float64"))
        assert np.isinf(read(path).vectors[0, 0])

    def test_bad_tables_are_refused(self, tmp_path):
        arrow = self.pyarrow
        floats = arrow.list_(arrow.float32())
        for columns, name, sentence in [
            ({"a": arrow.array([[1, 2], [3]], floats)}, None, "row 1 of .* has 1 dimensions but row 0 has 2"),
            ({"a": arrow.array([[1, 2], None], floats)}, None, "row 1 of .* has no value"),
            ({"a": arrow.array([[1, 2], [3, None]], floats)}, None, "row 1 of .* missing value"),
            ({"a": arrow.array([[], []], floats)}, None, "one dimension"),
            ({"a": arrow.array([], floats)}, None, "0 rows"),
            ({"a": arrow.array([1.0, None])}, None, "row 1 of .* has no value"),
            ({"a": [1, 2], "b": ["x", "y"]}, None, "no float matrix.* a int64, b string"),
            ({"a": [1.0, 2.0]}, "a", "column 'a' of .* is double; expected a list of floats"),
            ({"a": [1.0, 2.0]}, "z", "nothing named 'z'"),
            ({"a": [1.0, 2.0], "id": [1, 1]}, None, "id 1 is given more than once"),
            ({"a": [1.0, 2.0], "id": arrow.array([1, None])}, None, "NoneType"),
            ({"a": [1.0, 2.0], "id": [0.5, 1.5]}, None, "float"),
        ]:
            path = self.write(tmp_path / "v.parquet", **columns)
            with pytest.raises(InputError, match=sentence):
                read(path if name is None else f"{path}::{name}")

    def test_a_ragged_row_in_a_later_block_is_named(self, tmp_path):
        rows = [[1.0, 2.0]] * 10_000
        rows[9_000] = [1.0]
        with pytest.raises(InputError, match="row 9000 of"):
            read(self.write(tmp_path / "v.parquet", a=rows))


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

    def test_bad_datasets_are_refused(self, tmp_path):
        for data, sentence in [
            (np.zeros((2, 2), int), "int64; expected floats"),
            (VECTORS[0], "two axes"),
            (np.float32(1), "two axes"),
            (VECTORS[:0], "at least one row"),
            (self.h5py.Empty("f4"), "two axes"),
        ]:
            path = self.write(tmp_path / "v.h5", x=data)
            with pytest.raises(InputError, match=sentence):
                read(f"{path}::x")


@pytest.mark.parametrize(("suffix", "package"), [(".parquet", "pyarrow"), (".hdf5", "h5py"), (".h5", "h5py")])
def test_a_missing_library_is_named_with_the_way_to_install_it(suffix, package, put, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf'needs {package}; .*pip install "softindex\[data\]"'):
        read(put(f"v{suffix}", b"anything"))
