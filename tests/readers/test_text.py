"""Word vectors as text."""

import gzip
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vector_files import VECTORS, WORDS, text_bytes

from softindex.errors import InputError, SoftindexError
from softindex.readers.tables import Request
from softindex.readers.text import LONGEST_LINE, read_text
from softindex.vectors import read


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
            (b"a 1 2\nb 0.5 1 2\n", "line 2 of .* has more than 2 values"),
            (b"2 2\na 1 2\nthe b -3 1 2\n", "line 3 of .* has more than 2 values"),
            (b"a 1 2\nb 1 2\na 3 4\n", "id 'a' is given more than once"),
        ],
    )
    def test_malformed_text_is_refused_with_its_line(self, content, sentence, put):
        with pytest.raises(InputError, match=sentence):
            read(put("v.txt", content))

    def test_words_with_spaces_that_end_in_no_number_are_words(self, put):
        found = read(put("v.txt", b"a 1 2\n. . 3 4\nto infinity 5 6\nroute 66a 7 8\n"))
        assert found.ids.tolist() == ["a", ". .", "to infinity", "route 66a"]

    @pytest.mark.parametrize("head", [b"", b"a 1 2\n"])
    def test_a_line_that_does_not_end_is_not_read_into_memory(self, head, put):
        path = put("v.txt.gz", gzip.compress(head + bytes(3 * LONGEST_LINE), 1))
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match=r"line . of .* is longer than"):
                read(path)
            assert tracemalloc.get_traced_memory()[1] < 2.5 * LONGEST_LINE
        finally:
            tracemalloc.stop()

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
